#include "ops/dropout.hpp"

#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

ops::DropoutSite site_of(Lane& lane, double p, std::int64_t batch, std::int64_t first_token = 0,
                         std::int64_t first_channel = 0) {
  ops::DropoutSite site;
  site.p = p;
  site.key = RandomKey{9}.with("hidden");
  site.tokens.first = first_token;
  site.first_channel = first_channel;
  site.sample_ids = zeros(lane, DType::kI64, {batch});
  for (std::int64_t b = 0; b < batch; ++b)
    set_element(site.sample_ids, b, static_cast<double>(5000000000 + b * b));
  return site;
}

// The documented function.
double factor(const ops::DropoutSite& site, std::int64_t token, std::int64_t sample, std::int64_t channel) {
  const auto c = static_cast<std::uint64_t>(channel + site.first_channel);
  const auto t = static_cast<std::uint64_t>(site.tokens.of(token));
  const Philox bits =
      philox(site.key, c / 4 | t << 32, static_cast<std::uint64_t>(element(site.sample_ids, sample)));
  return static_cast<double>(uniform(bits[c % 4])) >= site.p ? 1 / (1 - site.p) : 0;
}

TEST(Dropout, IsTheDocumentedFunction) {
  for (const DType dtype : kFloating) {
    for (const Shape& shape : std::vector<Shape>{{1, 1, 1}, {3, 2, 17}, {5, 3, 65}, {2, 1, 1030}}) {
      for (const double p : {0.0, 0.1, 0.5, 0.9}) {
        Bench bench(2);
        Lane& lane = bench.lane;
        const ops::DropoutSite site = site_of(lane, p, shape[1], 7, 6);
        const Tensor x = random_strided(lane, dtype, shape, 1),
                     residual = random_strided(lane, dtype, shape, 2);
        const Tensor bias = random(lane, dtype, {shape[2]}, 3), dout = random_strided(lane, dtype, shape, 4);
        Values with_all(static_cast<std::size_t>(x.elems())), bare = with_all, back = with_all;
        for (std::int64_t i = 0; i < x.elems(); ++i) {
          const std::int64_t c = i % shape[2], b = i / shape[2] % shape[1], t = i / shape[2] / shape[1];
          const double f = factor(site, t, b, c);
          with_all[static_cast<std::size_t>(i)] =
              element(residual, i) + f * (element(x, i) + element(bias, c));
          bare[static_cast<std::size_t>(i)] = f * element(x, i);
          back[static_cast<std::size_t>(i)] = f * element(dout, i);
        }
        const double tolerance = unit(dtype) * 1.01 + unit(accumulator_of(dtype)) * 3;
        expect_near(ops::bias_dropout_add(lane, x, bias, residual, site), with_all, tolerance, "all");
        expect_near(ops::bias_dropout_add(lane, x, {}, {}, site), bare, tolerance, "bare");
        expect_near(ops::dropout_backward(lane, dout, site), back, tolerance, "backward");
      }
    }
  }
}

// A rank's part of the tokens and of the channels has the masks of the whole.
TEST(Dropout, PartsEqualTheWhole) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor x = random(lane, DType::kF32, {8, 3, 50}, 1);
  const Tensor whole = ops::bias_dropout_add(lane, x, {}, {}, site_of(lane, 0.3, 3));
  for (std::int64_t t = 0; t < 8; t += 3) {
    const std::int64_t n = std::min<std::int64_t>(3, 8 - t);
    EXPECT_TRUE(same_bits(ops::bias_dropout_add(lane, x.slice(t, n), {}, {}, site_of(lane, 0.3, 3, t)),
                          whole.slice(t, n)));
  }
  for (const auto& [begin, count] : std::vector<std::pair<int, int>>{{0, 7}, {7, 2}, {9, 41}}) {
    EXPECT_TRUE(same_bits(
        ops::bias_dropout_add(lane, x.slice_columns(begin, count), {}, {}, site_of(lane, 0.3, 3, 0, begin)),
        whole.slice_columns(begin, count)));
  }
}

TEST(Dropout, KeepsTheRightShareAndDiffersByKey) {
  Bench bench(2);
  Lane& lane = bench.lane;
  const Tensor x = constant(lane, DType::kF32, {64, 4, 256}, 1);
  ops::DropoutSite site = site_of(lane, 0.2, 4);
  const auto kept = [&](const Tensor& y) {
    double n = 0;
    for (const double v : values_of(y)) n += v != 0;
    return n / static_cast<double>(y.elems());
  };
  const Tensor y = ops::bias_dropout_add(lane, x, {}, {}, site);
  EXPECT_NEAR(kept(y), 0.8, 0.006);  // four standard deviations
  site.key = site.key.with(1);
  EXPECT_FALSE(same_bits(ops::bias_dropout_add(lane, x, {}, {}, site), y));
}

TEST(Dropout, WithoutDroppingBackwardIsTheSameTensor) {
  Bench bench;
  const Tensor dout = random(bench.lane, DType::kF32, {2, 2, 3}, 1);
  const std::size_t before = bench.arena->allocations();
  EXPECT_EQ(ops::dropout_backward(bench.lane, dout, {}).raw(), dout.raw());
  EXPECT_EQ(bench.arena->allocations(), before);
}

TEST(Dropout, WorkersAndMeta) {
  Bench one(1), three(3);
  const Tensor x = random(one.lane, DType::kBF16, {100, 2, 300}, 1);
  const ops::DropoutSite site = site_of(one.lane, 0.1, 2);
  EXPECT_TRUE(same_bits(ops::bias_dropout_add(one.lane, x, {}, x, site),
                        ops::bias_dropout_add(three.lane, x, {}, x, site)));
  expect_same_plan([](Lane& lane) {
    const Tensor in = lane.alloc(DType::kBF16, {9, 2, 40}, "x");
    std::int64_t ids[] = {1, 2};  // host memory on every lane
    ops::DropoutSite s;
    s.p = 0.5;
    s.sample_ids = Tensor::borrow(ids, DType::kI64, {2});
    const Tensor y = ops::bias_dropout_add(lane, in, {}, in, s), dx = ops::dropout_backward(lane, y, s);
  });
  EXPECT_THROW(ops::bias_dropout_add(one.lane, x, {}, {}, {.p = 0.5}), Error);
}

}  // namespace
}  // namespace weft
