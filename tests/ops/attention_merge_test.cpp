#include "ops/attention_merge.hpp"

#include "ops/elementwise.hpp"
#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

TEST(MergeAttention, OfTwoSetsOfKeysIsAttentionToBoth) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t cut : {1, 7, 30}) {
      Bench bench(2);
      Lane& lane = bench.lane;
      const Tensor q = random(lane, dtype, {9, 2, 4 * 6}, 1, 3), k = random(lane, dtype, {31, 2, 2 * 6}, 2),
                   v = random(lane, dtype, {31, 2, 2 * 6}, 3);
      const ops::AttentionOptions options{.head_dim = 6, .scale = 0.7, .causal = false};
      const ops::AttentionResult whole = ops::attention(lane, q, k, v, options);
      const ops::AttentionResult first = ops::attention(lane, q, k.slice(0, cut), v.slice(0, cut), options);
      const ops::AttentionResult sum{ops::cast(lane, first.out, accumulator_of(dtype), "test"), first.lse};
      ops::merge_attention(lane, sum,
                           ops::attention(lane, q, k.slice(cut, 31 - cut), v.slice(cut, 31 - cut), options));
      expect_near(sum.out, values_of(whole.out), unit(dtype) * 4 + unit(accumulator_of(dtype)) * 40, "out");
      expect_near(sum.lse, values_of(whole.lse), unit(accumulator_of(dtype)) * 40, "lse");
    }
  }
}

TEST(MergeAttention, RowsThatHaveSeenNothingTakeWhatComes) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor q = random(lane, DType::kF32, {5, 1, 8}, 1), k = random(lane, DType::kF32, {4, 1, 8}, 2);
  ops::AttentionOptions none{.head_dim = 8};
  none.query_offset = -100;
  const ops::AttentionResult sum = ops::attention(lane, q, k, k, none),
                             nothing = ops::attention(lane, q, k, k, none);
  ops::merge_attention(lane, sum, nothing);
  for (std::int64_t i = 0; i < 40; ++i) EXPECT_EQ(element(sum.out, i), 0);
  for (std::int64_t i = 0; i < 5; ++i)
    EXPECT_EQ(element(sum.lse, i), -std::numeric_limits<double>::infinity());
  const ops::AttentionResult all = ops::attention(lane, q, k, k, {.head_dim = 8, .causal = false});
  ops::merge_attention(lane, sum, all);
  EXPECT_TRUE(same_bits(sum.out, all.out));
  EXPECT_TRUE(same_bits(sum.lse, all.lse));
  ops::merge_attention(lane, sum, nothing);
  EXPECT_TRUE(same_bits(sum.out, all.out));
}

}  // namespace
}  // namespace weft
