// Rotary frequencies for longer contexts, against transformers' and by hand.
#include "model/rotary_table.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace weft {
namespace {

RotarySpec yarn_spec(std::int64_t dim, double factor, std::int64_t original) {
  RotarySpec spec{.dim = dim};
  spec.scaling = {
      .kind = RopeScaling::Kind::kYarn, .factor = factor, .original_max_position_embeddings = original};
  return spec;
}

void expect_frequencies(const RotarySpec& spec, const std::vector<double>& expected) {
  const std::vector<double> found = rotary_frequencies(spec);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 2e-7 * expected[i]) << i;
}

// inv_freq of transformers 5.17.0 for the models deepseek_v3_yarn_noqlora and gpt_oss of the golden data.
TEST(Yarn, FrequenciesOfTransformers) {
  expect_frequencies(yarn_spec(8, 4, 32),
                     {1.0, 0.02500000037252903, 0.0024999999441206455, 0.0002500000118743628});
  RotarySpec exact = yarn_spec(16, 4, 32);
  exact.scaling.truncate = false;
  expect_frequencies(
      exact, {1.0, 0.14849025011062622, 0.02500000037252903, 0.007905694656074047, 0.0024999999441206455,
              0.0007905694656074047, 0.0002500000118743628, 7.905694656074047e-05});
}

// DeepSeek-V3: of 32 pairs, pair 64 ln(4096 / (2 pi 32)) / (2 ln 10000) = 10.47 turns 32 times, 22.5 once.
TEST(Yarn, BlendsBetweenTheBorders) {
  const std::vector<double> found = rotary_frequencies(yarn_spec(64, 40, 4096));
  const auto own = [](int i) { return std::pow(10000.0, -i / 32.0); };
  for (const int i : {0, 5, 10}) EXPECT_DOUBLE_EQ(found[static_cast<std::size_t>(i)], own(i));
  for (const int i : {23, 31}) EXPECT_DOUBLE_EQ(found[static_cast<std::size_t>(i)], own(i) / 40);
  EXPECT_DOUBLE_EQ(found[16], own(16) * (7.0 / 13) + own(16) / 40 * (6.0 / 13));
}

TEST(Yarn, Magnitude) {
  RopeScaling s = yarn_spec(8, 4, 32).scaling;
  EXPECT_DOUBLE_EQ(rotary_magnitude(s), 0.1 * std::log(4.0) + 1);
  s.mscale_all_dim = 0.8;
  EXPECT_NEAR(rotary_magnitude(s), 1.0249579607969668, 1e-15);  // transformers'
  s.attention_factor = 0.5;
  EXPECT_EQ(rotary_magnitude(s), 0.5);
  s = yarn_spec(8, 0.5, 32).scaling;
  EXPECT_EQ(rotary_magnitude(s), 1);
  s.kind = RopeScaling::Kind::kLinear;
  s.factor = 4;
  EXPECT_EQ(rotary_magnitude(s), 1);
}

TEST(Yarn, TableHoldsTheMagnitude) {
  const auto arena = Arena::host(1 << 16);
  Workers workers(1);
  Lane lane{*arena, workers, {}};
  const RotarySpec spec = yarn_spec(8, 4, 32);
  const ops::RopeTable table = make_rotary_table(lane, spec, 3, DType::kF64);
  const double m = rotary_magnitude(spec.scaling);
  for (std::size_t i = 0; i < 4; ++i) {
    const double angle = 2 * rotary_frequencies(spec)[i];
    EXPECT_DOUBLE_EQ(table.cos.data<double>()[8 + i], m * std::cos(angle));
    EXPECT_DOUBLE_EQ(table.sin.data<double>()[8 + i], m * std::sin(angle));
  }
}

}  // namespace
}  // namespace weft
