#include "optim/optimizer.hpp"

#include "ops/elementwise.hpp"
#include "ops/optimizer.hpp"

namespace weft {
namespace {

// The part that both optimizers share: where the master weights are.
class MasterWeights {
 public:
  MasterWeights(Lane& lane, const ParamBuffer& buffer) : buffer_(buffer), pieces_(pieces_of(lane, buffer)) {
    const DType type = accumulator_of(buffer.weights().dtype());
    // fp32 (and fp64) models update their weights in place, where those that are owned lie in one piece.
    const bool in_place = type == buffer.weights().dtype() && !buffer.distributed();
    master_ = in_place ? buffer.weights().slice(0, buffer.elems()) : zeros(lane, "master weights");
  }

  Tensor zeros(Lane& lane, const char* what) const {
    Tensor t = lane.alloc(accumulator_of(buffer_.weights().dtype()), {buffer_.owned_elems()}, what);
    ops::fill(lane, t, 0);
    return t;
  }

  void publish(Lane& lane) const {
    if (master_.raw() == buffer_.weights().raw()) return;
    for (const ParamBuffer::Piece& piece : buffer_.pieces()) {
      ops::copy(lane, master_.slice(piece.owned, piece.elems),
                buffer_.weights().slice(piece.offset, piece.elems));
    }
  }

  const ParamBuffer& buffer() const { return buffer_; }
  const Tensor& flat() const { return master_; }
  void read_marks(Lane& lane) { pieces_ = pieces_of(lane, buffer_); }
  const ops::FlatPieces& pieces() const { return pieces_; }

 private:
  static ops::FlatPieces pieces_of(Lane& lane, const ParamBuffer& buffer) {
    std::vector<ops::FlatPiece> pieces;
    for (const ParamBuffer::Piece& p : buffer.pieces()) {
      pieces.push_back({p.owned, p.offset, p.elems, p.param->decay() ? 1 : 0});
    }
    // No rank of the data-parallel group has more of them than one of each parameter.
    return {lane, std::move(pieces),
            ops::FlatPieces::most_chunks(buffer.owned_elems(), buffer.slots().size())};
  }

  const ParamBuffer& buffer_;
  ops::FlatPieces pieces_;
  Tensor master_;
};

class AdamW final : public Optimizer {
 public:
  AdamW(Lane& lane, const ParamBuffer& buffer, const AdamWOptions& options)
      : master_(lane, buffer),
        options_(options),
        exp_avg_(master_.zeros(lane, "Adam's first moments")),
        exp_avg_sq_(master_.zeros(lane, "Adam's second moments")) {}

  void read_marks(Lane& lane) override { master_.read_marks(lane); }
  void step(Lane& lane, const UpdateStep& update) override {
    const TraceScope traced(lane.tools, "optimizer");
    ++steps_;
    ops::adamw(
        lane,
        {.lr = update.lr,
         .beta1 = options_.beta1,
         .beta2 = options_.beta2,
         .eps = options_.eps,
         .weight_decay = update.weight_decay,
         .t = steps_,
         .gradient_scale = update.gradient_scale},
        master_.pieces(),
        {master_.flat(), exp_avg_, exp_avg_sq_, master_.buffer().gradients(), master_.buffer().weights()});
  }

  const Tensor& master() const override { return master_.flat(); }
  void publish(Lane& lane) override { master_.publish(lane); }
  std::vector<State> state() const override { return {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}}; }
  std::int64_t steps() const override { return steps_; }
  void set_steps(std::int64_t steps) override { steps_ = steps; }

 private:
  MasterWeights master_;
  AdamWOptions options_;
  Tensor exp_avg_, exp_avg_sq_;
  std::int64_t steps_ = 0;
};

class Sgd final : public Optimizer {
 public:
  Sgd(Lane& lane, const ParamBuffer& buffer, const SgdOptions& options)
      : master_(lane, buffer),
        options_(options),
        momentum_(options.momentum != 0 ? master_.zeros(lane, "momentum") : Tensor()) {}

  void read_marks(Lane& lane) override { master_.read_marks(lane); }
  void step(Lane& lane, const UpdateStep& update) override {
    const TraceScope traced(lane.tools, "optimizer");
    ops::sgd(lane,
             {.lr = update.lr,
              .momentum = options_.momentum,
              .weight_decay = update.weight_decay,
              .first = steps_ == 0,
              .gradient_scale = update.gradient_scale},
             master_.pieces(),
             {master_.flat(), momentum_, master_.buffer().gradients(), master_.buffer().weights()});
    ++steps_;
  }

  const Tensor& master() const override { return master_.flat(); }
  void publish(Lane& lane) override { master_.publish(lane); }
  std::vector<State> state() const override {
    if (!momentum_.defined()) return {};
    return {{"momentum", momentum_}};
  }
  std::int64_t steps() const override { return steps_; }
  void set_steps(std::int64_t steps) override { steps_ = steps; }

 private:
  MasterWeights master_;
  SgdOptions options_;
  Tensor momentum_;
  std::int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(Lane& lane, const ParamBuffer& buffer, const AdamWOptions& options) {
  return std::make_unique<AdamW>(lane, buffer, options);
}

std::unique_ptr<Optimizer> make_sgd(Lane& lane, const ParamBuffer& buffer, const SgdOptions& options) {
  return std::make_unique<Sgd>(lane, buffer, options);
}

}  // namespace weft
