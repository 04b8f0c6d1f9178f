#include "nn/whole_linear.hpp"

#include "ops/elementwise.hpp"

namespace weft::nn {
namespace {

// Collectives join rows: the pieces arrive one below the other and are put side by side when they are there.
class JoinColumns final : public Operation {
 public:
  JoinColumns(Async<Tensor> pieces, const Tensor& out, int count)
      : pieces_(std::move(pieces)), out_(out), count_(count) {}
  void wait(Lane& lane) override {
    const Tensor pieces = pieces_.wait(lane);  // [count · rows, n]
    const std::int64_t rows = pieces.dim(0) / count_, n = pieces.dim(1);
    const Tensor matrix = out_.view({rows, count_ * n});
    for (int r = 0; r < count_; ++r) {
      ops::copy(lane, pieces.slice(r * rows, rows), matrix.slice_columns(r * n, n));
    }
  }
  void cancel() noexcept override { pieces_ = Async<Tensor>(); }
  void dropped() noexcept override { pieces_ = Async<Tensor>(); }

 private:
  Async<Tensor> pieces_;
  Tensor out_;
  int count_;
};

}  // namespace

Async<Tensor> gather_columns(Lane& lane, Communicator& tp, const Tensor& x) {
  if (tp.size() == 1) return Async<Tensor>(x);
  Shape shape = x.shape();
  shape.set(-1, tp.size() * x.columns());
  const Tensor out = lane.alloc(x.dtype(), shape, "gathered columns");
  Async<Tensor> pieces = tp.all_gather(lane, x.view({x.rows(), x.columns()}));
  return {out, std::make_unique<JoinColumns>(std::move(pieces), out, tp.size())};
}

Tensor own_columns(const Communicator& tp, const Tensor& x) {
  WEFT_CHECK(x.columns() % tp.size() == 0, "group '{}' of {} ranks: the last dimension of {} does not divide",
             tp.name(), tp.size(), to_string(x.shape()));
  const std::int64_t n = x.columns() / tp.size();
  return x.slice_columns(tp.rank() * n, n);
}

Tensor GatheredOutputLinear::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  return gather_columns(lane, tp_, column_->forward(lane, x, mb)).wait(lane);
}

Async<Tensor> GatheredOutputLinear::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  return column_->backward(lane, own_columns(tp_, dy), mb);
}

Tensor ScatteredInputLinear::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  const Tensor part = own_columns(tp_, x);
  return row_->forward(lane, part.contiguous() ? part : ops::cast(lane, part, part.dtype(), "own columns"),
                       mb);
}

Async<Tensor> ScatteredInputLinear::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  return gather_columns(lane, tp_, row_->backward(lane, dy, mb).wait(lane));
}

}  // namespace weft::nn
