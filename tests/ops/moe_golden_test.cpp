// Routing, balance losses and capacity against results of Megatron's router functions in f32.
#include <map>

#include "io/safetensors.hpp"
#include "ops/moe.hpp"
#include "ops/support.hpp"
#include "support/golden.hpp"

namespace weft {
namespace {

using namespace test;
using ops::RouterOptions;
using ops::RouterScore;
using ops::Routing;

constexpr std::int64_t kTokens = 24, kExperts = 8;

class MoeGolden : public ::testing::TestWithParam<DType> {
 protected:
  MoeGolden() : file_(testing::golden("megatron/moe_router_functions") / "tensors.safetensors") {}

  Values golden(const std::string& name) const {
    const Tensor x = file_.get(name);
    if (x.dtype() != DType::kU8) return values_of(x);
    const auto bytes = x.values<std::uint8_t>();
    return Values(bytes.begin(), bytes.end());
  }
  Tensor in(const std::string& name, Shape shape = {}) {
    const Tensor x = file_.get(name);
    return make(lane_, GetParam(), shape.rank() == 0 ? x.shape() : shape, values_of(x));
  }
  // The weights of chosen experts, and which are chosen, as matrices [tokens, experts].
  static Values dense(const Routing& r, bool weights) {
    Values x(kTokens * kExperts);
    for (std::int64_t i = 0; i < r.experts.elems(); ++i) {
      const auto e = static_cast<std::int64_t>(element(r.experts, i));
      if (e >= 0) {
        x[static_cast<std::size_t>(i / r.experts.dim(1) * kExperts + e)] = weights ? element(r.probs, i) : 1;
      }
    }
    return x;
  }

  Bench bench_;
  Lane& lane_ = bench_.lane;
  SafetensorsFile file_;
};

INSTANTIATE_TEST_SUITE_P(Types, MoeGolden, ::testing::Values(DType::kF64, DType::kF32));

TEST_P(MoeGolden, Routing) {
  const std::map<std::string, RouterOptions> cases = {
      {"softmax_post", {.score = RouterScore::kSoftmax}},
      {"softmax_pre", {.score = RouterScore::kSoftmaxOverAll}},
      {"softmax_pre_scaled", {.score = RouterScore::kSoftmaxOverAll, .scale = 2.5}},
      {"softmax_pre_group", {.score = RouterScore::kSoftmaxOverAll, .groups = 4, .group_topk = 2}},
      {"sigmoid", {.score = RouterScore::kSigmoid}},
      {"sigmoid_bias", {.score = RouterScore::kSigmoid}},
      {"sigmoid_bias_group", {.score = RouterScore::kSigmoid, .groups = 4, .group_topk = 2, .scale = 2.5}}};
  const Tensor logits = in("logits");
  const Values dprobs_dense = golden("d_probs");
  for (const auto& [name, options] : cases) {
    ASSERT_EQ(golden(name + ".topk")[0], options.topk);
    const bool biased = name.find("bias") != std::string::npos;
    const Routing r = ops::route(lane_, logits, biased ? in("expert_bias") : Tensor(), {}, options);
    EXPECT_EQ(dense(r, false), golden(name + ".map")) << name;
    expect_near(dense(r, true), golden(name + ".probs"), 1e-6, name);
    const Tensor dprobs = zeros(lane_, GetParam(), r.probs.shape());
    for (std::int64_t i = 0; i < dprobs.elems(); ++i) {
      const auto e = static_cast<std::int64_t>(element(r.experts, i));
      set_element(dprobs, i, dprobs_dense[static_cast<std::size_t>(i / options.topk * kExperts + e)]);
    }
    expect_near(ops::route_backward(lane_, dprobs, logits, r, options), golden(name + ".dlogits"), 1e-6,
                name + " dlogits");
  }
}

// Rows are [sequence 12, batch 2]: the loss of each sequence is that of two groups.
TEST_P(MoeGolden, BalanceLosses) {
  const Tensor logits = in("logits");
  const auto losses = [&](const Tensor& sums, const RouterOptions& options) {
    const Tensor out = zeros(lane_, DType::kF64, {2});
    ops::balance_losses(lane_, sums, options, 1, out);
    return values_of(out);
  };
  for (const auto& [name, options] : std::map<std::string, RouterOptions>{
           {"softmax", {.score = RouterScore::kSoftmax}}, {"sigmoid", {.score = RouterScore::kSigmoid}}}) {
    for (const auto& [loss, groups] : std::map<std::string, std::int64_t>{{"aux.", 1}, {"seq_aux.", 2}}) {
      const Tensor sums = ops::balance_sums(lane_, logits, {}, groups, options);
      expect_near(Values{0.01 * losses(sums, options)[0]}, golden(loss + name + ".loss"), 1e-6, loss + name);
      const Tensor dlogits = zeros(lane_, GetParam(), logits.shape());
      ops::balance_backward(lane_, logits, {}, sums, options, {.aux = 0.01}, dlogits);
      expect_near(dlogits, golden(loss + name + ".dlogits"), 2e-6, loss + name + " dlogits");
    }
    // Scores and choices that the sums are made of.
    const Values sums = values_of(ops::balance_sums(lane_, logits, {}, 1, options)),
                 scores = golden("aux." + name + ".scores"), map = golden("aux." + name + ".map");
    Values expected(2 * kExperts);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      expected[i % kExperts] += scores[i];
      expected[kExperts + i % kExperts] += map[i];
    }
    expect_near(Values(sums.begin(), sums.begin() + 2 * kExperts), expected, 1e-6, name + " sums");
  }
  const RouterOptions options;
  const Tensor sums = ops::balance_sums(lane_, logits, {}, 1, options),
               dlogits = zeros(lane_, GetParam(), logits.shape());
  expect_near(Values{0.001 * losses(sums, options)[1]}, golden("z.loss"), 1e-6, "z");
  ops::balance_backward(lane_, logits, {}, sums, options, {.z = 0.001}, dlogits);
  expect_near(dlogits, golden("z.dlogits"), 1e-6, "z dlogits");
}

TEST_P(MoeGolden, Capacity) {
  const RouterOptions options;
  const Tensor places = lane_.alloc(DType::kI32, {kTokens}, "places");
  for (const bool by_position : {false, true}) {
    const std::string name = by_position ? "drop_position" : "drop_probs";
    const Values map = golden(name + ".map");
    const Routing r = ops::route(lane_, in("logits"), {}, {}, options);
    // By position torch keeps whichever of equal entries it finds first, which is no order of its own: here
    // the tokens come first that it dropped nothing of, then the others, 3 before those that it displaced.
    const Values before = dense(r, false);
    for (std::size_t t = 0; t < kTokens; ++t) {
      bool dropped = false;
      for (std::size_t e = 0; e < kExperts; ++e) dropped |= before[t * kExperts + e] != map[t * kExperts + e];
      const std::size_t place = !dropped || !by_position ? t : t == 3 ? 100 : 200 + t;
      set_element(places, static_cast<std::int64_t>(t), static_cast<double>(place));
    }
    ops::drop_over_capacity(lane_, r, places, kExperts, 6, by_position);
    EXPECT_EQ(dense(r, false), map) << name;
    expect_near(dense(r, true), golden(name + ".probs"), 1e-6, name);
  }
}

}  // namespace
}  // namespace weft
