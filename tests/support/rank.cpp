#include "support/rank.hpp"

#include <algorithm>
#include <cmath>

#include "nn/gather.hpp"
#include "ops/elementwise.hpp"

namespace weft::testing {

std::vector<double> random_values(std::uint64_t seed, std::int64_t count) {
  std::vector<double> values;
  const RandomKey key = RandomKey{seed}.with("test");
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(2.0 * uniform(philox(key, static_cast<std::uint64_t>(i))[0]) - 1.0 + 1e-4);
  }
  return values;
}

Tensor random_tensor(Lane& lane, const Shape& shape, DType dtype, std::uint64_t seed) {
  std::vector<double> values = random_values(seed, shape.elems());
  const Tensor x = lane.alloc(dtype, shape, "test");
  ops::copy(lane, Tensor::borrow(values.data(), DType::kF64, shape), x);
  return x;
}

std::vector<double> to_doubles(const Tensor& x) {
  std::vector<double> values(static_cast<std::size_t>(x.elems()));
  TestRank rank(1 << 12);
  ops::copy(rank.lane(), x, Tensor::borrow(values.data(), DType::kF64, x.shape()));
  return values;
}

MicrobatchData random_batch(Lane& lane, std::int64_t b, std::int64_t s, std::int64_t vocabulary,
                            std::uint64_t seed, std::int64_t ignored) {
  MicrobatchData data;
  data.tokens = lane.alloc(DType::kI32, {b, s}, "test");
  data.labels = lane.alloc(DType::kI32, {b, s}, "test");
  data.sample_ids = lane.alloc(DType::kI64, {b}, "test");
  const RandomKey key = RandomKey{seed}.with("batch");
  for (std::int64_t i = 0; i < b * s; ++i) {
    const Philox bits = philox(key, static_cast<std::uint64_t>(i));
    data.tokens.data<std::int32_t>()[i] =
        static_cast<std::int32_t>(bits[0] % static_cast<std::uint64_t>(vocabulary));
    const bool skip = ignored > 0 && i % ignored == 0;
    data.labels.data<std::int32_t>()[i] =
        skip ? -100 : static_cast<std::int32_t>(bits[1] % static_cast<std::uint64_t>(vocabulary));
  }
  for (std::int64_t i = 0; i < b; ++i)
    data.sample_ids.data<std::int64_t>()[i] = static_cast<std::int64_t>(seed) * 100 + i;
  return data;
}

TestModel::TestModel(Lane& lane, Communicator& tp, const ModelSpec& spec, DType dtype, std::int64_t positions,
                     std::uint64_t seed)
    : lane_(lane),
      tp_(tp),
      dp_(self_communicator("dp")),
      model_(build(spec, lane, {.params = params_, .tp = tp, .dtype = dtype, .positions = positions})),
      buffer_(std::make_unique<ParamBuffer>(lane, params_, *dp_, ParamBufferOptions{.dtype = dtype})) {
  for (const auto& param : params_.all()) {
    if (param->owner() != nullptr) continue;
    // The same draw as a run's, but every kind of tensor random: ones become 1 + noise, zeros noise.
    std::vector<LogicalTensor> parts = param->parts();
    for (LogicalTensor& part : parts) {
      const bool matrix = part.global.rank() > 1;
      part.init = {Init::Kind::kNormal, matrix ? 0.3 : 0.2};
    }
    const Param drawn(param->name(), param->local_shape(), parts, param->traits());
    initialize(lane, drawn, param->weight(), RandomKey{seed});
    if (param->parts().front().init.kind == Init::Kind::kOnes) {
      std::vector<double> ones(static_cast<std::size_t>(param->local_shape().elems()), 1.0);
      const Tensor one_tensor = lane.alloc(dtype, param->local_shape(), "test");
      ops::copy(lane, Tensor::borrow(ones.data(), DType::kF64, param->local_shape()), one_tensor);
      ops::add_in_place(lane, param->weight(), one_tensor);
    }
  }
}

double TestModel::run(const std::vector<MicrobatchData>& batches, DrainPoint drain) {
  buffer_->begin_step(lane_, static_cast<int>(batches.size()));
  double total = 0;
  for (const MicrobatchData& batch : batches) {
    Microbatch mb;
    mb.batch = batch;
    mb.dropout_key = RandomKey{77};
    mb.later = WeightGrads(drain);
    model_->forward(lane_, Tensor(), mb);
    for (const double loss : to_doubles(mb.losses)) total += loss;
    model_->backward(lane_, Tensor(), mb);
    mb.later.drain(lane_);
    WEFT_CHECK(mb.saved.empty(), "activations are left");
  }
  buffer_->finish_step();
  return total;
}

double TestModel::loss(const MicrobatchData& batch) {
  Microbatch mb;
  mb.batch = batch;
  mb.dropout_key = RandomKey{77};
  mb.saved = SavedStack(false);
  model_->forward(lane_, Tensor(), mb);
  double total = 0;
  for (const double loss : to_doubles(mb.losses)) total += loss;
  return total;
}

std::map<std::string, std::vector<double>> TestModel::gathered_gradients() {
  std::map<std::string, std::vector<double>> all;
  for (const auto& param : params_.all()) {
    if (param->owner() != nullptr || !param->trains()) continue;  // added to its owner's; none
    for (const LogicalTensor& part : param->parts()) {
      const Tensor own = param->part_of(param->main_grad(), part);
      const bool partial = part.cut < 0 && part.partial_gradient;
      const std::vector<double> full =
          to_doubles(partial ? tp_.all_reduce(lane_, ops::cast(lane_, own, own.dtype(), "test")).wait(lane_)
                             : gather_whole(lane_, tp_, part, own));
      std::vector<double>& sum =
          all.try_emplace(part.name, std::vector<double>(full.size(), 0.0)).first->second;
      for (std::size_t i = 0; i < full.size(); ++i) sum[i] += full[i];
    }
  }
  return all;
}

double gradient_difference(const Gradients& a, const Gradients& b, std::string* worst) {
  double all = 0, elements = 0;
  for (const auto& [name, values] : b) {
    for (const double v : values) all += v * v;
    elements += static_cast<double>(values.size());
  }
  double largest = a.size() == b.size() ? 0 : 1e30;
  for (const auto& [name, expected] : b) {
    const auto found = a.find(name);
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < expected.size() && found != a.end(); ++i) {
      difference += (found->second[i] - expected[i]) * (found->second[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    const double floor = 1e-3 * std::sqrt(all * static_cast<double>(expected.size()) / elements);
    double ratio = std::sqrt(difference) / std::max(std::sqrt(norm), floor);
    if (found == a.end() || found->second.size() != expected.size() || std::isnan(ratio)) ratio = 1e30;
    if (ratio >= largest) {
      largest = ratio;
      *worst = name;
    }
  }
  return largest;
}

}  // namespace weft::testing
