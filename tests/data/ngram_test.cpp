#include "data/ngram.hpp"

#include <cmath>
#include <random>
#include <vector>

#include "data/support.hpp"

namespace weft {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(Ngram, CountsByHand) {
  // Training 0 1 0 1 0 2 with vocabulary 3; validation 0 1 2.
  const NgramScores scores = ngram_scores(Ids{0, 1, 0, 1, 0, 2}, Ids{0, 1, 2}, 3);
  const double one = 3.0 / 9, two = 2.0 / 9;  // (c + 1) / (6 + 3)
  EXPECT_NEAR(scores.unigram, -(std::log(one) + std::log(two)) / 2, 1e-12);
  const double w = scores.weight;
  EXPECT_NEAR(scores.bigram, -(std::log(w * 2 / 3 + (1 - w) * one) + std::log((1 - w) * two)) / 2, 1e-12);
}

TEST(Ngram, WeightFollowsWhatTheTextIsLike) {
  std::mt19937 random(1);
  Ids chain, noise;
  for (int i = 0; i < 20'000; ++i) {
    chain.push_back(i % 50);
    noise.push_back(static_cast<std::int32_t>(random() % 50));
  }
  const NgramScores certain = ngram_scores(chain, chain, 50);
  EXPECT_EQ(certain.weight, 0.99);
  EXPECT_LT(certain.bigram, 0.02);
  EXPECT_NEAR(certain.unigram, std::log(50.0), 0.01);
  const NgramScores even = ngram_scores(noise, noise, 50);
  EXPECT_LT(even.weight, 0.3);
}

TEST(Ngram, NeedsTokens) {
  EXPECT_TRUE(test::holds(test::message_of<ConfigError>([] {
                            ngram_scores(Ids{1}, Ids{1, 2}, 3);
                          }),
                          {"training has 1"}));
}

}  // namespace
}  // namespace weft
