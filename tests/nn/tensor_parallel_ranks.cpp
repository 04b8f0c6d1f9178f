#include "nn/tensor_parallel_ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ops/elementwise.hpp"

namespace weft::testing {

ShardedRank::ShardedRank(Lane& lane, Communicator& tp, Communicator& results, const Form& form)
    : lane_(lane), tp_(tp), results_(results), form_(form), replicated_(tp), sequence_parallel_(tp) {
  if (form_.chunks == 0) return;
  if (form_.sequence_parallel) {
    chunked_ = std::make_unique<nn::ChunkedSequenceParallelBorder>(sequence_parallel_, form_.chunks);
  } else {
    chunked_ = std::make_unique<nn::ChunkedReplicatedBorder>(replicated_, form_.chunks);
  }
}

const nn::TensorParallelBorder& ShardedRank::border() const {
  if (form_.sequence_parallel) return sequence_parallel_;
  return replicated_;
}

namespace {

Tensor cut_of(const Tensor& global, Cut cut, const Communicator& tp) {
  const std::int64_t n = (cut == Cut::kRows ? global.dim(0) : global.dim(-1)) / tp.size();
  if (cut == Cut::kRows) return global.slice(tp.rank() * n, n);
  if (cut == Cut::kColumns) return global.slice_columns(tp.rank() * n, n);
  return global;
}

// Σ over ranks, as numbers.
std::vector<double> sum_over(Lane& lane, Communicator& tp, const Tensor& x) {
  tp.all_reduce(lane, x).wait(lane);
  return to_doubles(x);
}

Tensor zeros(Lane& lane, const Shape& shape) {
  Tensor x = lane.alloc(DType::kF64, shape, "test");
  ops::fill(lane, x, 0);
  return x;
}

}  // namespace

Tensor ShardedRank::part(const Shape& global, Cut cut, std::uint64_t seed) {
  const Tensor mine = cut_of(random_tensor(lane_, global, DType::kF64, seed), cut, tp_);
  return ops::cast(lane_, mine, form_.dtype, "test");
}

std::vector<double> ShardedRank::join(const Tensor& part, const Shape& global, Cut cut) {
  const Tensor all = zeros(lane_, global);
  if (cut != Cut::kWhole || tp_.rank() == 0) ops::copy(lane_, part, cut_of(all, cut, tp_));
  std::vector<double> joined = sum_over(lane_, results_, all);
  if (cut == Cut::kWhole && to_doubles(part) != joined) {
    std::fill(joined.begin(), joined.end(), std::numeric_limits<double>::quiet_NaN());
  }
  return joined;
}

const Param& ShardedRank::param(const std::string& name, const std::vector<Piece>& pieces,
                                std::int64_t columns, int cut) {
  std::vector<LogicalTensor> parts;
  for (const Piece& piece : pieces) {
    LogicalTensor t;
    t.name = piece.name;
    t.global = columns > 0 ? Shape{piece.rows, columns} : Shape{piece.rows};
    t.cut = cut;
    // Rounded up: what is left over is padding.
    t.count = cut < 0 ? piece.rows : (t.global[cut] + tp_.size() - 1) / tp_.size();
    t.begin = cut < 0 ? 0 : tp_.rank() * t.count;
    t.init = {Init::Kind::kNormal, 0.4};
    parts.push_back(t);
  }
  Param* p = params_.add(name, std::move(parts), {.decay = columns > 0});
  const Tensor weight = lane_.alloc(form_.dtype, p->local_shape(), "test");
  initialize(lane_, *p, weight, RandomKey{17});
  p->bind(weight, lane_.alloc(accumulator_of(form_.dtype), p->local_shape(), "test"), nullptr);
  return *p;
}

std::unique_ptr<nn::Linear> ShardedRank::column(const std::vector<Piece>& pieces, std::int64_t in,
                                                bool with_bias) {
  const std::string name = pieces[0].name;
  const Param& weight = param(name, pieces, in, 0);
  const Param* bias = nullptr;
  if (with_bias) {
    std::vector<Piece> biases = pieces;
    for (Piece& piece : biases) piece.name += ".bias";
    bias = &param(name + ".bias", biases, 0, 0);
  }
  if (chunked_) return std::make_unique<nn::OverlappedColumnParallelLinear>(*chunked_, weight, bias);
  return std::make_unique<nn::ColumnParallelLinear>(border(), weight, bias);
}

std::unique_ptr<nn::Linear> ShardedRank::row(const std::string& name, std::int64_t out, std::int64_t in) {
  const Param& weight = param(name, {{name, out}}, in, 1);
  if (chunked_) return std::make_unique<nn::OverlappedRowParallelLinear>(*chunked_, weight);
  return std::make_unique<nn::RowParallelLinear>(border(), weight);
}

Microbatch& ShardedRank::begin() {
  for (const auto& p : params_.all()) p->begin_step(1);
  mb_ = Microbatch();
  mb_.batch = batch_;
  mb_.dropout_key = RandomKey{5};
  return mb_;
}

Gradients ShardedRank::gradients() {
  mb_.later.drain(lane_);
  EXPECT_TRUE(mb_.saved.empty());
  Gradients all;
  for (const auto& param : params_.all()) {
    for (const LogicalTensor& part : param->parts()) {
      const Tensor local = param->part_of(param->main_grad(), part);
      if (part.cut < 0 && !form_.sequence_parallel) {
        all[part.name] = join(local, part.global, Cut::kWhole);
        continue;
      }
      const Tensor sum = zeros(lane_, part.global);
      const std::int64_t n = part.cut < 0 ? 0 : part.real_count(), begin = n > 0 ? part.begin : 0;
      if (part.cut < 0) ops::copy(lane_, local, sum);
      if (part.cut == 0) ops::copy(lane_, local.slice(0, n), sum.slice(begin, n));
      if (part.cut == 1) ops::copy(lane_, local, sum.slice_columns(begin, n));
      all[part.name] = sum_over(lane_, results_, sum);
    }
  }
  return all;
}

}  // namespace weft::testing
