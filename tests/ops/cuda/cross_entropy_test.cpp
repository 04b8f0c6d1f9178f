#include "ops/cross_entropy.hpp"

#include "ops/cuda/gpu.hpp"

namespace weft {
namespace {

using namespace test;
using ops::CrossEntropyLocal;
using ops::CrossEntropyOptions;
using ops::CrossEntropyResult;

struct Case {
  std::int64_t batch, length, vocabulary, columns;  // columns ≥ vocabulary: padded
  double smoothing = 0, z = 0;
};
// Tails of vectors, padding of less and more than a vector, rows of several rounds of a block, and rows that
// fit in half a multiprocessor's shared memory, in all of it, and not at all.
const std::vector<Case> kCases = {{1, 1, 2, 2},
                                  {1, 3, 1, 16},
                                  {2, 3, 17, 24, 0.1},
                                  {3, 5, 65, 65, 0, 1e-3},
                                  {2, 2, 1500, 1536, 0.2, 1e-3},
                                  {1, 3, 513, 640},
                                  {2, 3, 8192, 8192, 0.1},
                                  {1, 3, 10001, 10240, 0.1, 1e-4},
                                  {1, 3, 50257, 50304, 0, 1e-4},
                                  {1, 3, 50257, 50257, 0.1},
                                  {1, 2, 128256, 128256, 0.1, 1e-4},
                                  {1, 3, 131071, 131072},
                                  {1, 2, 400003, 400008, 0.1},
                                  {1, 2, 150001, 150016}};

class CudaCrossEntropy : public OnGpu {
 protected:
  Tensor labels_of(const Case& c) {
    const Tensor labels = zeros(cpu(), DType::kI32, {c.batch, c.length});
    for (std::int64_t i = 0; i < labels.elems(); ++i) {
      set_element(labels, i,
                  i % 5 == 3 ? -100 : static_cast<double>((i * 7 + c.vocabulary - 1) % c.vocabulary));
    }
    return labels;
  }
  static CrossEntropyOptions options_of(const Case& c) {
    CrossEntropyOptions o;
    o.vocabulary = c.vocabulary;
    o.label_smoothing = c.smoothing;
    o.z_loss = c.z;
    return o;
  }
  // Padding holds whatever the head's padded rows made of it; it must not be looked at.
  Tensor logits_of(DType dtype, const Case& c, bool strided) {
    const Shape shape{c.length, c.batch, c.columns};
    const Tensor x = strided ? random_strided(cpu(), dtype, shape, 1, 3) : random(cpu(), dtype, shape, 1, 3);
    for (std::int64_t i = 0; i < x.elems(); ++i) {
      if (i % c.columns >= c.vocabulary) set_element(x, i, i % 2 == 0 ? 1e4 : std::nan(""));
    }
    return x;
  }
  static CrossEntropyResult steps(Lane& lane, const Tensor& logits, const Tensor& labels,
                                  const CrossEntropyOptions& o, double scale) {
    const CrossEntropyLocal local = ops::cross_entropy_local(lane, logits, labels, o);
    const CrossEntropyResult r = ops::cross_entropy_finish(lane, local.max, local.sums, labels, o);
    ops::cross_entropy_backward(lane, logits, r.lse, labels, o, scale);
    return r;
  }
  void expect_zeros(const Tensor& dlogits, const Tensor& losses, const Tensor& labels, const Case& c) {
    const Tensor d = to_cpu(dlogits), l = to_cpu(losses);
    for (std::int64_t row = 0; row < d.rows(); ++row) {
      const bool ignored = element(labels, row % c.batch * c.length + row / c.batch) < 0;
      if (ignored) {
        ASSERT_EQ(element(l, row), 0) << row;
      }
      for (std::int64_t v = ignored ? 0 : c.vocabulary; v < c.columns; ++v) {
        ASSERT_EQ(element(d, row * c.columns + v), 0) << row << ", " << v;
      }
    }
  }
};

TEST_F(CudaCrossEntropy, StepsAndFusedFollowDouble) {
  for (const DType dtype : kFloating) {
    const double fine = rounding(accumulator_of(dtype));
    for (const Case& c : kCases) {
      for (const bool strided : {false, true}) {
        const std::string what =
            fmt::format("{} {} of {} strided {}", name_of(dtype), c.vocabulary, c.columns, strided);
        SCOPED_TRACE(what);
        const CrossEntropyOptions o = options_of(c);
        const Tensor host = logits_of(dtype, c, strided), host_labels = labels_of(c);
        const Tensor labels = to_gpu(host_labels), logits = to_gpu(host), fused = to_gpu(host);
        const Tensor reference = wide(logits);
        const CrossEntropyResult expected = steps(cpu(), reference, host_labels, o, 0.5);
        const CrossEntropyResult r = steps(gpu(), logits, labels, o, 0.5);
        const CrossEntropyResult f = ops::cross_entropy_fused(gpu(), fused, labels, o, 0.5);
        expect_close(r.lse, expected.lse, fine, "lse");
        expect_close(r.losses, expected.losses, 2 * fine, "losses");
        expect_close(logits, reference, std::max(rounding(dtype), 4 * fine), "dlogits");
        expect_close(f.lse, expected.lse, fine, "fused lse");
        expect_close(f.losses, expected.losses, 2 * fine, "fused losses");
        expect_close(fused, reference, std::max(rounding(dtype), 4 * fine), "fused dlogits");
        expect_zeros(logits, r.losses, host_labels, c);
        expect_zeros(fused, f.losses, host_labels, c);
        const Tensor again = to_gpu(host);
        const CrossEntropyResult g = ops::cross_entropy_fused(gpu(), again, labels, o, 0.5);
        EXPECT_TRUE(same_bits(to_cpu(fused), to_cpu(again)));
        EXPECT_TRUE(same_bits(to_cpu(f.losses), to_cpu(g.losses)));
      }
    }
  }
}

// The small gradients far from the label, which a norm over all elements does not see: each within its own
// rounding.
TEST_F(CudaCrossEntropy, EveryElementOfTheGradient) {
  const Case c{1, 4, 5003, 5008};
  const CrossEntropyOptions o = options_of(c);
  const Tensor host = logits_of(DType::kBF16, c, false), host_labels = labels_of(c);
  for (const bool fused : {false, true}) {
    const Tensor logits = to_gpu(host), labels = to_gpu(host_labels), reference = wide(logits);
    steps(cpu(), reference, host_labels, o, 1);
    if (fused) {
      ops::cross_entropy_fused(gpu(), logits, labels, o, 1);
    } else {
      steps(gpu(), logits, labels, o, 1);
    }
    const Tensor got = to_cpu(logits);
    for (std::int64_t i = 0; i < got.elems(); ++i) {
      const double e = element(reference, i);
      ASSERT_NEAR(element(got, i), e, 0x1p-8 * std::fabs(e) + 1e-30) << i;
    }
  }
}

// Unequal parts, one of them of padding alone, of whole vectors and not; the reductions by hand.
TEST_F(CudaCrossEntropy, CutVocabulary) {
  using Cuts = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const Case c{2, 4, 1003, 1200, 0.1, 1e-3};
  const CrossEntropyOptions o = options_of(c);
  for (const auto& [dtype, cuts] :
       {std::pair{DType::kBF16, Cuts{{0, 336}, {336, 504}, {840, 240}, {1080, 120}}},
        std::pair{DType::kBF16, Cuts{{0, 336}, {336, 501}, {837, 243}, {1080, 120}}},
        std::pair{DType::kF16, Cuts{{0, 8}, {8, 1192}}},
        std::pair{DType::kF32, Cuts{{0, 336}, {336, 504}, {840, 240}, {1080, 120}}},
        std::pair{DType::kF64, Cuts{{0, 337}, {337, 503}, {840, 360}}}}) {
    const DType wide_type = accumulator_of(dtype);
    const double fine = rounding(wide_type);
    const Tensor host_labels = labels_of(c), labels = to_gpu(host_labels);
    const Tensor logits = to_gpu(random(cpu(), dtype, {c.length, c.batch, c.columns}, 1, 5));
    const Tensor reference = wide(logits);
    const CrossEntropyResult expected = steps(cpu(), reference, host_labels, o, 1);
    const std::int64_t rows = logits.rows();
    const Tensor max = constant(cpu(), wide_type, {rows}, -1e30), sums = zeros(cpu(), wide_type, {3, rows});
    std::vector<CrossEntropyLocal> locals;
    const auto part = [&](std::int64_t first) {
      CrossEntropyOptions p = o;
      p.first = first;
      return p;
    };
    for (const auto& [first, count] : cuts) {
      locals.push_back(
          ops::cross_entropy_local(gpu(), logits.slice_columns(first, count), labels, part(first)));
      const Tensor own = to_cpu(locals.back().max);
      for (std::int64_t i = 0; i < rows; ++i) set_element(max, i, std::max(element(max, i), element(own, i)));
    }
    for (const CrossEntropyLocal& local : locals) {
      ops::cross_entropy_rescale(gpu(), local, to_gpu(max));
      const Tensor own = to_cpu(local.sums);
      for (std::int64_t i = 0; i < 3 * rows; ++i) set_element(sums, i, element(sums, i) + element(own, i));
    }
    const CrossEntropyResult r = ops::cross_entropy_finish(gpu(), to_gpu(max), to_gpu(sums), labels, o);
    expect_close(r.lse, expected.lse, fine, "lse");
    expect_close(r.losses, expected.losses, 2 * fine, "losses");
    for (const auto& [first, count] : cuts) {
      ops::cross_entropy_backward(gpu(), logits.slice_columns(first, count), r.lse, labels, part(first), 1);
    }
    expect_close(logits, reference, std::max(rounding(dtype), 4 * fine), "dlogits");
    expect_zeros(logits, r.losses, host_labels, c);
  }
}

TEST_F(CudaCrossEntropy, HugeLogitsStayFinite) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Case c{1, 8, 700, 704};
    const CrossEntropyOptions o = options_of(c);
    const Tensor host = random(cpu(), dtype, {8, 1, 704}, 1, 1e4), host_labels = labels_of(c);
    const Tensor logits = to_gpu(host), reference = wide(logits);
    const CrossEntropyResult expected = steps(cpu(), reference, host_labels, o, 1);
    const CrossEntropyResult r = ops::cross_entropy_fused(gpu(), logits, to_gpu(host_labels), o, 1);
    expect_close(r.losses, expected.losses, 1e-6, "losses");
    for (const double v : values_of(to_cpu(logits))) ASSERT_TRUE(std::isfinite(v));
  }
}

// −infinity masks a logit, wherever it stands; NaN shows in the loss of its row alone.
TEST_F(CudaCrossEntropy, InfinitiesAndNans) {
  const Case c{1, 4, 3000, 3008};
  const CrossEntropyOptions o = options_of(c);
  const double inf = std::numeric_limits<double>::infinity();
  Tensor host = random(cpu(), DType::kBF16, {4, 1, 3008}, 1);
  for (std::int64_t v = 0; v < 2500; ++v) set_element(host, v, -inf);
  set_element(host, 3008 + 2999, std::nan(""));
  for (std::int64_t v = 0; v < 3000; ++v) set_element(host, 2 * 3008 + v, -inf);
  const Tensor host_labels = make(cpu(), DType::kI32, {1, 4}, {2600, 5, 5, 5});
  for (const bool fused : {false, true}) {
    const Tensor logits = to_gpu(host), labels = to_gpu(host_labels);
    const CrossEntropyResult r =
        fused ? ops::cross_entropy_fused(gpu(), logits, labels, o, 1) : steps(gpu(), logits, labels, o, 1);
    const Values losses = values_of(to_cpu(r.losses));
    double sum = 0;
    for (std::int64_t v = 2500; v < 3000; ++v) sum += std::exp(element(host, v));
    EXPECT_NEAR(losses[0], std::log(sum) - element(host, 2600), 1e-5);
    EXPECT_TRUE(std::isnan(losses[1]));
    EXPECT_TRUE(std::isnan(losses[2]));
    EXPECT_TRUE(std::isfinite(losses[3]));
    const Tensor d = to_cpu(logits);
    for (std::int64_t v = 0; v < 2500; ++v) ASSERT_EQ(element(d, v), 0);
    for (std::int64_t v = 0; v < 3000; ++v) ASSERT_TRUE(std::isfinite(element(d, 3 * 3008 + v)));
  }
}

TEST_F(CudaCrossEntropy, NoRows) {
  const Tensor logits = gpu().alloc(DType::kBF16, {0, 2, 64}, "test"),
               labels = gpu().alloc(DType::kI32, {2, 0}, "test");
  CrossEntropyOptions o;
  o.vocabulary = 64;
  steps(gpu(), logits, labels, o, 1);
  ops::cross_entropy_fused(gpu(), logits, labels, o, 1);
}

}  // namespace
}  // namespace weft
