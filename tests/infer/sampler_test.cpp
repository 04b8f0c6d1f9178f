#include "infer/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "core/check.hpp"
#include "infer/utf8_stream.hpp"

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<double> random_logits(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 2);
  std::vector<double> logits(n);
  for (double& x : logits) x = normal(random);
  return logits;
}

std::int32_t argmax(const std::vector<double>& x) {
  return static_cast<std::int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

std::size_t support(const std::vector<double>& p) {
  return static_cast<std::size_t>(std::count_if(p.begin(), p.end(), [](double x) { return x > 0; }));
}

TEST(Sampler, ProblemsNameOptionAndValue) {
  const auto text = [](const SamplingOptions& options) {
    const std::vector<std::string> problems = problems_of(options);
    return problems.size() == 1 ? problems[0] : fmt::format("{} problems", problems.size());
  };
  EXPECT_TRUE(text({.top_k = -1}).starts_with("--top-k -1: "));
  EXPECT_TRUE(text({.top_p = 1.5}).starts_with("--top-p 1.5: "));
  EXPECT_TRUE(text({.temperature = -1}).starts_with("--temperature -1: "));
  EXPECT_TRUE(text({.temperature = std::nan("")}).starts_with("--temperature nan: "));
  EXPECT_TRUE(text({.temperature = kInf}).starts_with("--temperature inf: "));
  EXPECT_EQ(problems_of({.temperature = -2, .top_k = -3, .top_p = -0.1}).size(), 3u);
  EXPECT_THROW(Sampler({.top_p = 1.5}), ConfigError);
}

TEST(Sampler, EdgesAreGreedy) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<double> logits = random_logits(97, seed);
    for (const SamplingOptions& options :
         {SamplingOptions{.temperature = 0}, SamplingOptions{.top_k = 1}, SamplingOptions{.top_p = 0},
          SamplingOptions{.temperature = 1e-8}, SamplingOptions{.temperature = 1e-300}}) {
      EXPECT_EQ(Sampler(options).next(logits, 0, seed), argmax(logits));
    }
  }
}

TEST(Sampler, FirstOfEquals) {
  const std::vector<double> equal(97, 1.25);
  EXPECT_EQ(Sampler({.temperature = 0}).next(equal, 0, 0), 0);
  EXPECT_EQ(Sampler({.top_k = 1}).next(equal, 0, 0), 0);
  const std::vector<double> p = Sampler({.top_k = 3}).probabilities(equal);
  EXPECT_EQ(support(p), 3u);
  EXPECT_DOUBLE_EQ(p[2], 1.0 / 3);
  std::vector<double> two(97, 0.0);
  two[40] = two[60] = 5;
  EXPECT_EQ(Sampler({.temperature = 0}).next(two, 0, 0), 40);
  // Divided by a tiny temperature equal logits stay equal, and nothing is NaN.
  const std::vector<double> cold = Sampler({.temperature = 1e-8}).probabilities(two);
  EXPECT_DOUBLE_EQ(cold[40], 0.5);
  EXPECT_DOUBLE_EQ(cold[60], 0.5);
}

TEST(Sampler, MoreThanTheVocabularyIsAllOfIt) {
  const std::vector<double> logits = random_logits(97, 3);
  const std::vector<double> all = Sampler({}).probabilities(logits);
  EXPECT_EQ(Sampler({.top_k = 100000}).probabilities(logits), all);
  EXPECT_EQ(Sampler({.top_k = 97}).probabilities(logits), all);
  EXPECT_EQ(support(all), 97u);
}

TEST(Sampler, ProbabilitiesAreSoftmax) {
  const std::vector<double> logits = random_logits(31, 5);
  const std::vector<double> p = Sampler({.temperature = 0.7}).probabilities(logits);
  double sum = 0;
  for (const double x : logits) sum += std::exp(x / 0.7);
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(p[i], std::exp(logits[i] / 0.7) / sum, 1e-14);
}

TEST(Sampler, TopKThenTopP) {
  // Probabilities 0.4 0.3 0.2 0.1, out of order.
  const std::vector<double> logits = {std::log(0.2), std::log(0.4), std::log(0.1), std::log(0.3)};
  EXPECT_EQ(support(Sampler({.top_p = 0.39}).probabilities(logits)), 1u);
  EXPECT_EQ(support(Sampler({.top_p = 0.41}).probabilities(logits)), 2u);
  EXPECT_EQ(support(Sampler({.top_p = 0.95}).probabilities(logits)), 4u);
  // Of the three that top-k leaves (4/9, 3/9, 2/9), 0.75 of the whole is in the first two.
  const std::vector<double> p = Sampler({.top_k = 3, .top_p = 0.75}).probabilities(logits);
  EXPECT_EQ(support(p), 2u);
  EXPECT_NEAR(p[1], 4.0 / 7, 1e-12);
  EXPECT_NEAR(p[3], 3.0 / 7, 1e-12);
}

TEST(Sampler, MinusInfinityIsNeverDrawn) {
  std::vector<double> logits(10, -kInf);
  logits[3] = 0;
  logits[7] = -0.5;
  Sampler sampler({});
  for (std::int64_t i = 0; i < 200; ++i) {
    const std::int32_t t = sampler.next(logits, 0, i);
    EXPECT_TRUE(t == 3 || t == 7) << t;
  }
  EXPECT_THROW(sampler.next(std::vector<double>(4, -kInf), 0, 0), Error);
  EXPECT_THROW(sampler.next(std::vector<double>{1, std::nan(""), 2}, 0, 0), Error);
  EXPECT_THROW(sampler.next(std::vector<double>{1, kInf, 2}, 0, 0), Error);
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  const std::vector<double> logits = random_logits(12, 9);
  Sampler sampler({.temperature = 1.3, .seed = 7});
  const std::vector<double> p = sampler.probabilities(logits);
  constexpr int kDraws = 40000;
  std::vector<int> counts(p.size(), 0);
  for (int i = 0; i < kDraws; ++i) {
    ++counts[static_cast<std::size_t>(sampler.next(logits, static_cast<std::uint64_t>(i % 4), i / 4))];
  }
  double chi_squared = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    chi_squared += (counts[i] - kDraws * p[i]) * (counts[i] - kDraws * p[i]) / (kDraws * p[i]);
  }
  EXPECT_LT(chi_squared, 31.3);  // 11 degrees of freedom: one in a thousand
}

TEST(Sampler, DrawsDependOnSeedSequenceAndPositionAlone) {
  const std::vector<double> logits = random_logits(97, 1);
  Sampler a({.seed = 7}), b({.seed = 7}), c({.seed = 8});
  int other_sequence = 0, other_seed = 0;
  for (std::int64_t i = 63; i >= 0; --i) a.next(logits, 9, i);  // history has no part
  for (std::int64_t i = 0; i < 64; ++i) {
    const std::int32_t t = a.next(logits, 2, i);
    EXPECT_EQ(t, b.next(logits, 2, i));
    other_sequence += t != b.next(logits, 3, i);
    other_seed += t != c.next(logits, 2, i);
  }
  EXPECT_GT(other_sequence, 40);
  EXPECT_GT(other_seed, 40);
}

TEST(Utf8Stream, HoldsBackWhatIsNotComplete) {
  Utf8Stream stream;
  const std::string text = "aé€😀";
  std::string out;
  for (const char c : text) {
    const std::string piece = stream.push(std::string_view(&c, 1));
    EXPECT_TRUE(piece.empty() || piece == "a" || piece == "é" || piece == "€" || piece == "😀") << piece;
    out += piece;
  }
  EXPECT_EQ(out, text);
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, ReplacesWhatIsNoCharacter) {
  const auto whole = [](std::string_view bytes) {
    Utf8Stream stream;
    std::string out = stream.push(bytes);
    return out + stream.finish();
  };
  EXPECT_EQ(whole("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(whole("\xE2\x82z"), "\uFFFDz");                          // cut short by another character
  EXPECT_EQ(whole("\xE2\x82"), "\uFFFD");                            // and by the end
  EXPECT_EQ(whole("\xC0\x80"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(whole("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // surrogate
  EXPECT_EQ(whole("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // past the last number
}

}  // namespace
}  // namespace weft
