// Recomputation changes no bit of any gradient, in whatever order weight gradients run, and it saves the
// memory that it is for.
#include "nn/recompute.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "model/transformer_layer.hpp"
#include "nn/attention/core_attention.hpp"
#include "nn/attention/self_attention.hpp"
#include "nn/bias_dropout_add.hpp"
#include "nn/mlp.hpp"
#include "nn/norm.hpp"
#include "support/check_module.hpp"
#include "support/rank.hpp"

namespace weft {
namespace {

using testing::random_batch;
using testing::random_tensor;
using testing::TestRank;

constexpr std::int64_t kSequence = 5, kBatch = 2, kHidden = 8, kHeads = 2, kHeadDim = 4, kFfn = 12;
constexpr std::int64_t kLayers = 3;

// What is recomputed: groups of layers, or modules of each layer.
struct Recompute {
  std::string name;
  std::vector<std::int64_t> groups;  // sizes of the first groups; layers after them are not recomputed
  std::set<std::string> modules;
};

std::vector<Recompute> all_forms() {
  return {
      {"uniform", {2, 1}, {}},
      {"block", {1, 1}, {}},
      {"core_attn", {}, {"core_attn"}},
      {"mlp", {}, {"mlp"}},
      {"layernorm", {}, {"layernorm"}},
      {"modules", {}, {"core_attn", "mlp", "layernorm"}},
      {"modules in groups", {2, 1}, {"core_attn", "mlp", "layernorm"}},
  };
}

// Transformer layers with dropout, biases and weights of their own.
class Layers {
 public:
  Layers(Lane& lane, DType dtype, const Recompute& recompute)
      : lane_(lane), dtype_(dtype), modules_(recompute.modules) {
    std::vector<std::unique_ptr<nn::Layer>> plain;
    for (std::int64_t i = 0; i < kLayers; ++i) plain.push_back(layer(i));
    std::size_t next = 0;
    for (const std::int64_t size : recompute.groups) {
      std::vector<std::unique_ptr<nn::Layer>> group;
      for (std::int64_t i = 0; i < size; ++i) group.push_back(std::move(plain[next++]));
      layers_.push_back(std::make_unique<nn::RecomputedLayers>(std::move(group)));
    }
    while (next < plain.size()) layers_.push_back(std::move(plain[next++]));
  }

  void begin_step(int microbatches) {
    for (const auto& p : params_.all()) p->begin_step(microbatches);
  }
  Tensor forward(const Tensor& x, Microbatch& mb) const {
    Tensor y = x;
    for (const auto& layer : layers_) y = layer->forward(lane_, y, mb);
    return y;
  }
  Tensor backward(const Tensor& dy, Microbatch& mb) const {
    Tensor dx = dy;
    for (std::size_t i = layers_.size(); i-- > 0;) dx = layers_[i]->backward(lane_, dx, mb);
    return dx;
  }
  const ParamSet& params() const { return params_; }

 private:
  const Param& param(const std::string& name, const Shape& shape) {
    Param* p = params_.add(name, {{name, shape, -1, 0, shape[0], 0, {}}}, {.decay = shape.rank() > 1});
    const std::uint64_t seed = params_.all().size();
    p->bind(random_tensor(lane_, shape, dtype_, seed),
            random_tensor(lane_, shape, accumulator_of(dtype_), 1000 + seed), nullptr);
    return *p;
  }

  std::unique_ptr<nn::Norm> norm(const std::string& name, bool recomputed, const nn::RecomputedNorm** out) {
    auto norm =
        std::make_unique<nn::LayerNorm>(param(name + ".w", {kHidden}), param(name + ".b", {kHidden}), 1e-5);
    if (!recomputed) return norm;
    auto wrapped = std::make_unique<nn::RecomputedNorm>(std::move(norm));
    *out = wrapped.get();
    return wrapped;
  }

  std::unique_ptr<nn::Linear> column(const std::string& name, std::int64_t rows,
                                     const nn::RecomputedNorm* norm) {
    auto linear = std::make_unique<nn::ColumnParallelLinear>(border_, param(name + ".w", {rows, kHidden}),
                                                             &param(name + ".b", {rows}));
    if (norm == nullptr) return linear;
    return std::make_unique<nn::RecomputedInputLinear>(std::move(linear), *norm);
  }

  std::unique_ptr<nn::Layer> layer(std::int64_t i) {
    const std::string at = std::to_string(i) + ".";
    const bool mlp_again = modules_.contains("mlp"), norms_again = modules_.contains("layernorm");
    const nn::RecomputedNorm* input = nullptr;
    const nn::RecomputedNorm* pre_mlp = nullptr;
    TransformerLayer::Slots slots;
    slots.input_norm = norm(at + "input_norm", norms_again, &input);
    auto qkv = column(at + "qkv", 3 * kHidden, input);
    std::unique_ptr<nn::CoreAttention> core = std::make_unique<nn::CausalAttention>(
        nn::CoreAttentionShape{.head_dim = static_cast<int>(kHeadDim),
                               .scale = 0.5,
                               .dropout = 0.25,
                               .site = nn::dropout_site(i, "core_attention")});
    if (modules_.contains("core_attn")) {
      core = std::make_unique<nn::RecomputedCoreAttention>(std::move(core));
    }
    slots.self_attention = std::make_unique<nn::SelfAttention>(
        nn::HeadCounts{kHeads, kHeads, kHeadDim}, std::move(qkv), std::make_unique<nn::NoHeadNorms>(),
        std::make_unique<nn::NoRotation>(), std::move(core),
        std::make_unique<nn::RowParallelLinear>(border_, param(at + "proj", {kHidden, kHidden})));
    slots.attention_bda = std::make_unique<nn::BiasDropoutAdd>(border_, &param(at + "proj.b", {kHidden}), 0.2,
                                                               nn::dropout_site(i, "attention"));
    slots.pre_mlp_norm = norm(at + "pre_mlp_norm", norms_again && !mlp_again, &pre_mlp);
    auto fc1 = column(at + "fc1", kFfn, pre_mlp);
    slots.mlp = std::make_unique<nn::Mlp>(
        std::move(fc1), std::make_unique<nn::PlainActivation>(ops::Activation::kGeluTanh),
        std::make_unique<nn::RowParallelLinear>(border_, param(at + "fc2", {kHidden, kFfn})));
    if (mlp_again) slots.mlp = std::make_unique<nn::RecomputedSublayer>(std::move(slots.mlp));
    slots.mlp_bda = std::make_unique<nn::BiasDropoutAdd>(border_, &param(at + "fc2.b", {kHidden}), 0.2,
                                                         nn::dropout_site(i, "mlp"));
    return std::make_unique<TransformerLayer>(std::move(slots));
  }

  Lane& lane_;
  DType dtype_;
  std::set<std::string> modules_;
  std::unique_ptr<Communicator> self_ = self_communicator("tp");
  nn::ReplicatedBorder border_{*self_};
  ParamSet params_;
  std::vector<std::unique_ptr<nn::Layer>> layers_;
};

Microbatch microbatch(Lane& lane, std::uint64_t number, DrainPoint drain = DrainPoint::kLinear) {
  Microbatch mb;
  mb.batch = random_batch(lane, kBatch, kSequence, 11, number);
  mb.dropout_key = RandomKey{5};
  mb.later = WeightGrads(drain);
  return mb;
}

const Shape kShape{kSequence, kBatch, kHidden};

// Fills all free memory with NaN and gives it back: whoever reads memory that it does not own will show it.
void poison(Lane& lane) {
  std::vector<Tensor> pieces;
  for (bool fits = true; fits;) {
    try {
      pieces.push_back(lane.alloc(DType::kF32, {64}, "poison"));
      for (float& x : pieces.back().values<float>()) x = std::numeric_limits<float>::quiet_NaN();
    } catch (const Error&) {
      fits = false;
    }
  }
}

// Two microbatches in flight: outputs, input gradients and all weight gradients.
std::vector<std::vector<double>> run(DType dtype, const Recompute& recompute, DrainPoint drain) {
  TestRank rank(std::size_t{1} << 18);
  Lane& lane = rank.lane();
  Layers layers(lane, dtype, recompute);
  layers.begin_step(2);
  std::vector<std::vector<double>> all;
  std::vector<Microbatch> flight;
  for (std::uint64_t m = 0; m < 2; ++m) {
    flight.push_back(microbatch(lane, m + 1, drain));
    all.push_back(
        testing::to_doubles(layers.forward(random_tensor(lane, kShape, dtype, 50 + m), flight.back())));
  }
  poison(lane);
  for (std::uint64_t m = 0; m < 2; ++m) {
    all.push_back(
        testing::to_doubles(layers.backward(random_tensor(lane, kShape, dtype, 60 + m), flight[m])));
    EXPECT_TRUE(flight[m].saved.empty()) << recompute.name;
    EXPECT_EQ(flight[m].later.empty(), drain < DrainPoint::kStage) << recompute.name;
  }
  poison(lane);
  for (Microbatch& mb : flight) mb.later.drain(lane);
  for (const auto& p : layers.params().all()) all.push_back(testing::to_doubles(p->main_grad()));
  return all;
}

TEST(Recompute, GradientsHaveTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const DrainPoint drain : {DrainPoint::kLinear, DrainPoint::kLayer, DrainPoint::kSchedule}) {
      const auto expected = run(dtype, {}, drain);
      for (const std::vector<double>& values : expected) {
        for (const double v : values) ASSERT_TRUE(std::isfinite(v));
      }
      for (const Recompute& recompute : all_forms()) {
        EXPECT_EQ(run(dtype, recompute, drain), expected) << recompute.name << " in " << name_of(dtype);
      }
    }
  }
}

TEST(Recompute, GradientsEqualFiniteDifferences) {
  for (const Recompute& recompute : all_forms()) {
    TestRank rank;
    Lane& lane = rank.lane();
    Layers layers(lane, DType::kF64, recompute);
    layers.begin_step(1);
    const Tensor x = random_tensor(lane, kShape, DType::kF64, 1),
                 r = random_tensor(lane, kShape, DType::kF64, 2);
    Microbatch mb = microbatch(lane, 3);
    layers.forward(x, mb);
    std::vector<testing::Derivative> derivatives{{recompute.name + " x", x, layers.backward(r, mb)}};
    for (const auto& p : layers.params().all()) {
      derivatives.push_back({recompute.name + " " + p->name(), p->weight(), p->main_grad()});
    }
    testing::check_derivatives(
        [&] {
          Microbatch again = microbatch(lane, 3);
          again.saved = SavedStack(false);
          const std::vector<double> y = testing::to_doubles(layers.forward(x, again));
          double sum = 0;
          for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * r.values<double>()[i];
          return sum;
        },
        derivatives, 1e-5, 6);
  }
}

std::int64_t in_arena(std::int64_t elems, DType dtype) {
  const auto bytes = static_cast<std::int64_t>(bytes_of(dtype)) * elems;
  const auto unit = static_cast<std::int64_t>(Arena::kAlignment);
  return (bytes + unit - 1) / unit * unit;
}

// Bytes that a microbatch in flight holds, without input and output.
std::int64_t saved_bytes(const Recompute& recompute, bool keep = true) {
  TestRank rank(std::size_t{1} << 20);
  Lane& lane = rank.lane();
  const Layers layers(lane, DType::kF32, recompute);
  const Tensor x = random_tensor(lane, kShape, DType::kF32, 1);
  Microbatch mb = microbatch(lane, 3);
  mb.saved = SavedStack(keep);
  const std::size_t before = lane.arena.in_use();
  layers.forward(x, mb);
  return static_cast<std::int64_t>(lane.arena.in_use() - before);
}

TEST(Recompute, SavesWhatItSays) {
  const std::int64_t tokens = kSequence * kBatch;
  const std::int64_t residual = in_arena(tokens * kHidden, DType::kF32);
  const std::int64_t inner = in_arena(tokens * kFfn, DType::kF32),
                     lse = in_arena(tokens * kHeads, DType::kF32);
  const std::int64_t plain = saved_bytes({});
  // Inputs of groups; that of the first is the caller's.
  EXPECT_EQ(saved_bytes({"", {3}, {}}), 0);
  EXPECT_EQ(saved_bytes({"", {2, 1}, {}}), residual);
  EXPECT_EQ(saved_bytes({"", {1, 1, 1}, {}}), 2 * residual);
  // A block: the last layer saves everything.
  EXPECT_LT(saved_bytes({"", {1, 1}, {}}), plain / 2 + residual);
  EXPECT_EQ(plain - saved_bytes({"", {}, {"core_attn"}}), kLayers * lse);
  EXPECT_EQ(plain - saved_bytes({"", {}, {"mlp"}}), kLayers * 2 * inner);
  EXPECT_EQ(plain - saved_bytes({"", {}, {"layernorm"}}), kLayers * 2 * residual);
  EXPECT_EQ(plain - saved_bytes({"", {}, {"mlp", "layernorm"}}), kLayers * (2 * inner + residual));
  for (const Recompute& recompute : all_forms())
    EXPECT_EQ(saved_bytes(recompute, false), 0) << recompute.name;
}

// The first pass needs no more memory than one that will have no backward.
TEST(Recompute, ForwardForgetsAsItGoes) {
  const auto peak = [](const Recompute& recompute, bool keep) {
    TestRank rank(std::size_t{1} << 20);
    Lane& lane = rank.lane();
    const Layers layers(lane, DType::kF32, recompute);
    const Tensor x = random_tensor(lane, kShape, DType::kF32, 1);
    Microbatch mb = microbatch(lane, 3);
    mb.saved = SavedStack(keep);
    lane.arena.reset_high_water();
    layers.forward(x, mb);
    return lane.arena.high_water();
  };
  EXPECT_EQ(peak({"", {3}, {}}, true), peak({}, false));
  EXPECT_LT(peak({"", {3}, {}}, true), peak({}, true));
}

// The second pass of a group is gone before the next group's begins.
TEST(Recompute, BackwardHoldsOneGroupAtATime) {
  const auto peak = [](const Recompute& recompute) {
    TestRank rank(std::size_t{1} << 20);
    Lane& lane = rank.lane();
    Layers layers(lane, DType::kF32, recompute);
    layers.begin_step(1);
    Microbatch mb = microbatch(lane, 3);
    const Tensor r = random_tensor(lane, kShape, DType::kF32, 2);
    layers.forward(random_tensor(lane, kShape, DType::kF32, 1), mb);
    const std::size_t held = lane.arena.in_use();
    lane.arena.reset_high_water();
    layers.backward(r, mb);
    EXPECT_LT(lane.arena.in_use(), held);
    return lane.arena.high_water();
  };
  EXPECT_LT(peak({"", {1, 1, 1}, {}}), peak({"", {3}, {}}));
}

TEST(Recompute, AnotherModuleBetweenNormAndLinearIsNoticed) {
  TestRank rank;
  Lane& lane = rank.lane();
  ParamSet params;
  const auto self = self_communicator("tp");
  const nn::ReplicatedBorder border(*self);
  const auto param = [&](const std::string& name, const Shape& shape) -> const Param& {
    Param* p = params.add(name, {{name, shape, -1, 0, shape[0], 0, {}}}, {});
    p->bind(random_tensor(lane, shape, DType::kF32, 1), random_tensor(lane, shape, DType::kF32, 2), nullptr);
    return *p;
  };
  const nn::RecomputedNorm norm(std::make_unique<nn::RmsNorm>(param("norm", {kHidden}), 1e-5));
  const nn::RecomputedInputLinear linear(
      std::make_unique<nn::ColumnParallelLinear>(border, param("w", {6, kHidden}), nullptr), norm);
  Microbatch mb = microbatch(lane, 1);
  const Tensor y = norm.forward(lane, random_tensor(lane, kShape, DType::kF32, 3), mb);
  mb.saved.push(1);
  const Tensor out = linear.forward(lane, y, mb);
  EXPECT_THROW(linear.backward(lane, out, mb).wait(lane), Error);
}

}  // namespace
}  // namespace weft
