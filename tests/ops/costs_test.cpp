#include "ops/costs.hpp"

#include "ops/support.hpp"

namespace weft {
namespace {

using ops::AttentionOptions;

AttentionOptions options_of(bool causal, std::int64_t offset, std::int64_t window) {
  AttentionOptions o;
  o.causal = causal;
  o.query_offset = offset;
  o.window = window;
  return o;
}

TEST(AttentionCost, IsTheAreaThatIsSeen) {
  const auto seen = [](double queries, double keys, bool causal, std::int64_t offset, std::int64_t window) {
    return ops::pairs_seen(queries, keys, options_of(causal, offset, window));
  };
  EXPECT_EQ(seen(64, 96, false, 0, 0), 64 * 96);
  EXPECT_EQ(seen(64, 64, true, 0, 0), 64 * 64 / 2);
  EXPECT_EQ(seen(64, 96, true, 32, 0), 64 * 32 + 64 * 64 / 2);
  EXPECT_EQ(seen(64, 64, true, 0, 16), 64 * 16 - 16 * 16 / 2);
  EXPECT_EQ(seen(64, 96, true, 32, 16), 64 * 16);
  EXPECT_EQ(seen(64, 64, true, 0, 1000), 64 * 64 / 2);
  EXPECT_EQ(seen(64, 64, true, -64, 0), 0);
  EXPECT_EQ(seen(64, 32, true, 100, 20), 0);
}

// But for halves of the squares on the two diagonals.
TEST(AttentionCost, IsTheNumberOfPairs) {
  for (const std::int64_t offset : {-50, -3, 0, 20, 70}) {
    for (const std::int64_t window : {0, 1, 9, 45, 200}) {
      const std::int64_t queries = 40, keys = 60;
      std::int64_t pairs = 0;
      for (std::int64_t i = 0; i < queries; ++i) {
        for (std::int64_t j = 0; j < keys; ++j) {
          pairs += j <= i + offset && (window == 0 || j > i + offset - window) ? 1 : 0;
        }
      }
      EXPECT_NEAR(ops::pairs_seen(queries, keys, options_of(true, offset, window)),
                  static_cast<double>(pairs), static_cast<double>(queries) / 2)
          << "offset " << offset << " window " << window;
    }
  }
}

TEST(AttentionCost, CountsHeadsAndSamples) {
  test::Bench meta(Arena::meta());
  const Tensor q = meta.lane.alloc(DType::kBF16, {64, 3, 8 * 16}, "q"),
               k = meta.lane.alloc(DType::kBF16, {96, 3, 2 * 16}, "k");
  EXPECT_EQ(ops::products_of(q, k, options_of(true, 32, 16)), 2.0 * 64 * 16 * 3 * 8 * 16);
}

}  // namespace
}  // namespace weft
