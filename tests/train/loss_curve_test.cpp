#include "train/loss_curve.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weft {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(LossCurve, DrawsWhatItIsGiven) {
  std::vector<StepMetrics> steps;
  for (int i = 1; i <= 300; ++i) {
    StepMetrics m;
    m.iteration = i;
    m.lm_loss = 2 + 4 * std::exp(-i / 60.0);
    m.lr = 1e-3;
    m.skipped = i == 5;
    if (m.skipped) m.lm_loss = std::numeric_limits<double>::quiet_NaN();
    if (i % 100 == 0) m.validation_loss = m.lm_loss + 0.1;
    steps.push_back(m);
  }
  LossCurve curve = loss_curve(steps, "a < b & c");
  curve.baselines = {{"unigram", 5.5}, {"bigram", 4.25}};
  const std::string svg = loss_curve_svg(curve);
  EXPECT_EQ(count(svg, "class=\"dot\""), 299u);
  EXPECT_EQ(count(svg, "class=\"marker\""), 3u);
  EXPECT_EQ(count(svg, "class=\"baseline\""), 2u);
  EXPECT_EQ(count(svg, "class=\"lr\""), 2u);  // the line and its legend
  EXPECT_NE(svg.find("unigram 5.500"), std::string::npos);
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("href"), std::string::npos);  // nothing from elsewhere
  EXPECT_EQ(svg.find("script"), std::string::npos);
}

TEST(LossCurve, LongRunsStaySmall) {
  LossCurve curve;
  for (int i = 1; i <= 100000; ++i) curve.train.push_back({i, 3.0 + std::sin(i * 0.1)});
  EXPECT_LT(loss_curve_svg(curve).size(), 200000u);
}

TEST(LossCurve, EmptyAndConstantRunsDraw) {
  EXPECT_NE(loss_curve_svg({}).find("</svg>"), std::string::npos);
  LossCurve one;
  one.train = {{1, 2.5}};
  const std::string svg = loss_curve_svg(one);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

}  // namespace
}  // namespace weft
