#include "ops/cross_entropy.hpp"

#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;
using ops::CrossEntropyOptions;

struct Case {
  std::int64_t batch, length, vocabulary, columns;  // columns ≥ vocabulary: padded
  double smoothing = 0, z = 0;
};
const std::vector<Case> kCases = {
    {1, 1, 2, 2},     {2, 3, 17, 20, 0.1}, {3, 5, 65, 65, 0, 1e-3}, {2, 2, 1500, 1536, 0.2, 1e-3},
    {1, 3, 513, 640}, {1, 17, 1, 16}};

Tensor labels_of(Lane& lane, const Case& c) {
  Tensor labels = zeros(lane, DType::kI32, {c.batch, c.length});
  for (std::int64_t i = 0; i < labels.elems(); ++i) {
    set_element(labels, i,
                i % 5 == 3 ? -100 : static_cast<double>((i * 7 + c.vocabulary - 1) % c.vocabulary));
  }
  return labels;
}

CrossEntropyOptions options_of(const Case& c) {
  CrossEntropyOptions o;
  o.vocabulary = c.vocabulary;
  o.label_smoothing = c.smoothing;
  o.z_loss = c.z;
  return o;
}

struct Reference {
  Values losses, lse, dlogits;
};

Reference reference(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& o, double scale) {
  const std::int64_t rows = logits.rows(), columns = logits.columns(), b = labels.dim(0), s = labels.dim(1);
  Reference r{Values(static_cast<std::size_t>(rows), 0.0), Values(static_cast<std::size_t>(rows), 0.0),
              Values(static_cast<std::size_t>(logits.elems()), 0.0)};
  for (std::int64_t row = 0; row < rows; ++row) {
    double max = -1e300, sum = 0;
    for (std::int64_t v = 0; v < o.vocabulary; ++v) max = std::max(max, element(logits, row * columns + v));
    for (std::int64_t v = 0; v < o.vocabulary; ++v) sum += std::exp(element(logits, row * columns + v) - max);
    const double lse = max + std::log(sum);
    r.lse[static_cast<std::size_t>(row)] = lse;
    const auto label = static_cast<std::int64_t>(element(labels, row % b * s + row / b));
    if (label < 0) continue;
    double& loss = r.losses[static_cast<std::size_t>(row)];
    for (std::int64_t v = 0; v < o.vocabulary; ++v) {
      const double x = element(logits, row * columns + v);
      const double share =
          v == label ? 1 - o.label_smoothing : o.label_smoothing / static_cast<double>(o.vocabulary - 1);
      if (share != 0) loss += share * (lse - x);
      r.dlogits[static_cast<std::size_t>(row * columns + v)] =
          scale * (std::exp(x - lse) * (1 + 2 * o.z_loss * lse) - share);
    }
    loss += o.z_loss * lse * lse;
  }
  return r;
}

TEST(CrossEntropy, ValuesAndGradients) {
  for (const DType dtype : kFloating) {
    for (const Case& c : kCases) {
      Bench bench(2);
      Lane& lane = bench.lane;
      const CrossEntropyOptions o = options_of(c);
      const Tensor logits = random_strided(lane, dtype, {c.length, c.batch, c.columns}, 1, 3);
      // Padding holds whatever the head's padded rows made of it; it must not be looked at.
      for (std::int64_t i = 0; i < logits.elems(); ++i) {
        if (i % c.columns >= c.vocabulary) set_element(logits, i, 1e4);
      }
      const Tensor labels = labels_of(lane, c);
      const Reference r = reference(logits, labels, o, 0.5);
      const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, logits, labels, o);
      const ops::CrossEntropyResult result =
          ops::cross_entropy_finish(lane, local.max, local.sums, labels, o);
      ops::cross_entropy_backward(lane, logits, result.lse, labels, o, 0.5);
      const std::string what = fmt::format("{} vocabulary {}", name_of(dtype), c.vocabulary);
      const double wide = unit(accumulator_of(dtype));
      expect_near(result.lse, r.lse, wide * 8, what + " lse");
      expect_near(result.losses, r.losses, wide * 32, what + " loss", 3);
      expect_near(logits, r.dlogits, unit(dtype) * 1.01 + wide * 16, what + " dlogits", 0.5);
      for (std::int64_t i = 0; i < logits.elems(); ++i) {
        const auto row = i / c.columns;
        if (i % c.columns >= c.vocabulary || element(labels, row % c.batch * c.length + row / c.batch) < 0) {
          ASSERT_EQ(element(logits, i), 0);
        }
      }
    }
  }
}

TEST(CrossEntropy, BackwardIsTheDerivative) {
  for (const Case& c : {Case{2, 3, 17, 20, 0.1, 1e-2}, Case{1, 5, 40, 40}}) {
    Bench bench;
    Lane& lane = bench.lane;
    const CrossEntropyOptions o = options_of(c);
    const Tensor logits = random(lane, DType::kF64, {c.length, c.batch, c.columns}, 1, 3),
                 labels = labels_of(lane, c);
    const auto loss = [&] {
      const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, logits, labels, o);
      double sum = 0;
      for (const double l :
           values_of(ops::cross_entropy_finish(lane, local.max, local.sums, labels, o).losses))
        sum += l;
      return sum;
    };
    const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, logits, labels, o);
    const ops::CrossEntropyResult r = ops::cross_entropy_finish(lane, local.max, local.sums, labels, o);
    const Tensor gradient = make(lane, DType::kF64, logits.shape(), values_of(logits));
    ops::cross_entropy_backward(lane, gradient, r.lse, labels, o, 1);
    expect_gradient(logits, values_of(gradient), loss, "dlogits");
  }
}

// The vocabulary cut in unequal parts, one of them padding alone, with the reductions done by hand.
TEST(CrossEntropy, CutVocabularyEqualsTheWhole) {
  Bench bench;
  Lane& lane = bench.lane;
  const Case c{2, 4, 100, 130, 0.1, 1e-3};
  const CrossEntropyOptions o = options_of(c);
  const Tensor logits = random(lane, DType::kF64, {c.length, c.batch, c.columns}, 1, 5),
               labels = labels_of(lane, c);
  const Reference r = reference(logits, labels, o, 1);
  const std::vector<std::pair<std::int64_t, std::int64_t>> cuts = {{0, 33}, {33, 50}, {83, 27}, {110, 20}};
  const std::int64_t rows = logits.rows();
  const Tensor max = constant(lane, DType::kF64, {rows}, -1e300), sums = zeros(lane, DType::kF64, {3, rows});
  std::vector<ops::CrossEntropyLocal> locals;
  for (const auto& [first, count] : cuts) {
    CrossEntropyOptions part = o;
    part.first = first;
    locals.push_back(ops::cross_entropy_local(lane, logits.slice_columns(first, count), labels, part));
    for (std::int64_t i = 0; i < rows; ++i)
      set_element(max, i, std::max(element(max, i), element(locals.back().max, i)));
  }
  for (const ops::CrossEntropyLocal& local : locals) {
    ops::cross_entropy_rescale(lane, local, max);
    for (std::int64_t i = 0; i < 3 * rows; ++i)
      set_element(sums, i, element(sums, i) + element(local.sums, i));
  }
  const ops::CrossEntropyResult result = ops::cross_entropy_finish(lane, max, sums, labels, o);
  expect_near(result.losses, r.losses, 1e-13, "losses");
  expect_near(result.lse, r.lse, 1e-13, "lse");
  for (const auto& [first, count] : cuts) {
    CrossEntropyOptions part = o;
    part.first = first;
    ops::cross_entropy_backward(lane, logits.slice_columns(first, count), result.lse, labels, part, 1);
  }
  expect_near(logits, r.dlogits, 1e-13, "dlogits");
}

TEST(CrossEntropy, HugeLogitsStayFinite) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Bench bench;
    Lane& lane = bench.lane;
    const Case c{1, 8, 700, 700};
    const CrossEntropyOptions o = options_of(c);
    const Tensor logits = random(lane, dtype, {8, 1, 700}, 1, 1e4), labels = labels_of(lane, c);
    const Reference r = reference(logits, labels, o, 1);
    const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, logits, labels, o);
    const ops::CrossEntropyResult result = ops::cross_entropy_finish(lane, local.max, local.sums, labels, o);
    expect_near(result.losses, r.losses, 1e-6, "losses");
    ops::cross_entropy_backward(lane, logits, result.lse, labels, o, 1);
    for (const double v : values_of(logits)) ASSERT_TRUE(std::isfinite(v));
  }
}

// Masked logits count for nothing wherever they stand, even where a whole stretch of the row is masked.
TEST(CrossEntropy, MinusInfinityMasks) {
  Bench bench;
  Lane& lane = bench.lane;
  const Case c{1, 2, 1200, 1200};
  const CrossEntropyOptions o = options_of(c);
  const Tensor logits = random(lane, DType::kF32, {2, 1, 1200}, 1),
               labels = make(lane, DType::kI32, {1, 2}, {1100, 5});
  const double inf = std::numeric_limits<double>::infinity();
  double sum = 0;
  for (std::int64_t v = 0; v < 1200; ++v) {
    if (v < 1050) set_element(logits, v, -inf);
    sum += std::exp(element(logits, v));
    set_element(logits, 1200 + v, -inf);
  }
  const double expected = std::log(sum) - element(logits, 1100);
  const ops::CrossEntropyResult r = ops::cross_entropy_fused(lane, logits, labels, o, 1);
  EXPECT_NEAR(element(r.losses, 0), expected, 1e-5);
  EXPECT_TRUE(std::isnan(element(r.losses, 1)));
  for (std::int64_t v = 0; v < 1050; ++v) ASSERT_EQ(element(logits, v), 0);
}

TEST(CrossEntropy, FusedEqualsTheSteps) {
  for (const DType dtype : kFloating) {
    for (const Case& c : kCases) {
      Bench bench(2);
      Lane& lane = bench.lane;
      const CrossEntropyOptions o = options_of(c);
      const Tensor a = random_strided(lane, dtype, {c.length, c.batch, c.columns}, 1, 3),
                   b = random_strided(lane, dtype, {c.length, c.batch, c.columns}, 1, 3),
                   labels = labels_of(lane, c);
      const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, a, labels, o);
      const ops::CrossEntropyResult steps = ops::cross_entropy_finish(lane, local.max, local.sums, labels, o);
      ops::cross_entropy_backward(lane, a, steps.lse, labels, o, 0.5);
      const ops::CrossEntropyResult fused = ops::cross_entropy_fused(lane, b, labels, o, 0.5);
      EXPECT_TRUE(same_bits(fused.losses, steps.losses));
      EXPECT_TRUE(same_bits(fused.lse, steps.lse));
      EXPECT_TRUE(same_bits(a, b));
    }
  }
}

TEST(CrossEntropy, FusedRefusesAPartOfTheVocabulary) {
  Bench bench;
  const Tensor logits = zeros(bench.lane, DType::kF32, {2, 1, 8}),
               labels = zeros(bench.lane, DType::kI32, {1, 2});
  CrossEntropyOptions o;
  o.vocabulary = 9;
  EXPECT_THROW(ops::cross_entropy_fused(bench.lane, logits, labels, o, 1), Error);
  o.vocabulary = 8;
  o.first = 1;
  EXPECT_THROW(ops::cross_entropy_fused(bench.lane, logits, labels, o, 1), Error);
}

TEST(CrossEntropy, WorkersAndMeta) {
  Bench one(1), three(3);
  const Case c{3, 40, 1000, 1024, 0.1, 1e-4};
  const CrossEntropyOptions o = options_of(c);
  const Tensor logits = random(one.lane, DType::kBF16, {40, 3, 1024}, 1), labels = labels_of(one.lane, c);
  const auto run = [&](Lane& lane) {
    const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, logits, labels, o);
    return ops::cross_entropy_finish(lane, local.max, local.sums, labels, o);
  };
  const ops::CrossEntropyResult a = run(one.lane), b = run(three.lane);
  EXPECT_TRUE(same_bits(a.losses, b.losses));
  EXPECT_TRUE(same_bits(a.lse, b.lse));
  expect_same_plan([&](Lane& lane) {
    const Tensor x = lane.alloc(DType::kBF16, {4, 2, 32}, "logits"),
                 y = lane.alloc(DType::kI32, {2, 4}, "labels");
    if (!lane.meta()) std::memset(y.raw(), 0, y.bytes());
    CrossEntropyOptions p;
    p.vocabulary = 30;
    const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, x, y, p);
    ops::cross_entropy_rescale(lane, local, local.max);
    const ops::CrossEntropyResult r = ops::cross_entropy_finish(lane, local.max, local.sums, y, p);
    ops::cross_entropy_backward(lane, x, r.lse, y, p, 1);
    ops::cross_entropy_fused(lane, x, y, p, 1);
  });
}

}  // namespace
}  // namespace weft
