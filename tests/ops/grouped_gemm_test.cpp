// Products of each expert against plain loops in double.
#include "ops/gemm.hpp"
#include "ops/moe.hpp"
#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

struct Sizes {
  std::vector<int> rows;  // of each expert
  std::int64_t out, in;
  std::int64_t beyond = 0;  // rows that no expert has

  std::int64_t experts() const { return static_cast<std::int64_t>(rows.size()); }
  std::int64_t all() const {
    std::int64_t n = beyond;
    for (const int r : rows) n += r;
    return n;
  }
  Tensor offsets(Lane& lane) const {
    Values v{0};
    for (const int r : rows) v.push_back(v.back() + r);
    return make(lane, DType::kI32, {experts() + 1}, v);
  }
  // The expert of each row; −1.
  std::vector<std::int64_t> owners() const {
    std::vector<std::int64_t> list;
    for (std::size_t e = 0; e < rows.size(); ++e) {
      list.insert(list.end(), static_cast<std::size_t>(rows[e]), static_cast<std::int64_t>(e));
    }
    list.resize(static_cast<std::size_t>(all()), -1);
    return list;
  }
};

const std::vector<Sizes> kSizes = {
    {{5}, 3, 4},       {{0, 7, 0, 0, 13, 1, 0}, 17, 33}, {{3, 4}, 5, 6, 9},    {{0, 0}, 4, 4, 3},
    {{0, 0, 0}, 5, 3}, {{150, 31, 0, 260}, 40, 300, 50}, {{1, 1, 1, 1}, 1, 1},
};

// y[r, o] = Σ_i x[r, i] w[e, o, i], and with `transposed` dx[r, i] = Σ_o dy[r, o] w[e, o, i].
Values product(const Sizes& s, const Tensor& x, const Tensor& w, bool transposed) {
  const std::int64_t columns = transposed ? s.in : s.out, depth = transposed ? s.out : s.in;
  Values y(static_cast<std::size_t>(s.all() * columns));
  const auto owners = s.owners();
  for (std::int64_t r = 0; r < s.all(); ++r) {
    const std::int64_t e = owners[static_cast<std::size_t>(r)];
    for (std::int64_t c = 0; e >= 0 && c < columns; ++c) {
      double sum = 0;
      for (std::int64_t d = 0; d < depth; ++d) {
        const std::int64_t o = transposed ? d : c, i = transposed ? c : d;
        sum += element(x, r * depth + d) * element(w, (e * s.out + o) * s.in + i);
      }
      y[static_cast<std::size_t>(r * columns + c)] = sum;
    }
  }
  return y;
}

Values weight_gradient(const Sizes& s, const Tensor& dy, const Tensor& x) {
  Values dw(static_cast<std::size_t>(s.experts() * s.out * s.in));
  const auto owners = s.owners();
  for (std::int64_t r = 0; r < s.all(); ++r) {
    const std::int64_t e = owners[static_cast<std::size_t>(r)];
    for (std::int64_t o = 0; e >= 0 && o < s.out; ++o) {
      for (std::int64_t i = 0; i < s.in; ++i) {
        dw[static_cast<std::size_t>((e * s.out + o) * s.in + i)] +=
            element(dy, r * s.out + o) * element(x, r * s.in + i);
      }
    }
  }
  return dw;
}

TEST(GroupedGemm, IsAProductForEachExpert) {
  for (const DType dtype : kFloating) {
    for (const Sizes& s : kSizes) {
      for (const bool flat : {false, true}) {
        Bench bench(2);
        Lane& lane = bench.lane;
        const Tensor offsets = s.offsets(lane);
        const Tensor x = random_strided(lane, dtype, {s.all(), s.in}, 1),
                     dy = random_strided(lane, dtype, {s.all(), s.out}, 2);
        const Tensor w = random(lane, dtype, {s.experts(), s.out, s.in}, 3)
                             .view(flat ? Shape{s.experts() * s.out, s.in} : Shape{s.experts(), s.out, s.in});
        const double wide = unit(accumulator_of(dtype)) * 40, tolerance = unit(dtype) * 1.01 + wide;
        expect_near(ops::grouped_gemm_nt(lane, x, w, offsets), product(s, x, w, false), tolerance, "nt");
        expect_near(ops::grouped_gemm_nn(lane, dy, w, offsets), product(s, dy, w, true), tolerance, "nn");
        Values gradient = weight_gradient(s, dy, x);
        const Tensor dw = constant(lane, accumulator_of(dtype), w.shape(), std::nan(""));
        ops::grouped_gemm_tn_accumulate(lane, dy, x, offsets, dw, 0);
        expect_near(dw, gradient, wide, "tn", 1);
        ops::grouped_gemm_tn_accumulate(lane, dy, x, offsets, dw, 1);
        for (double& g : gradient) g *= 2;
        expect_near(dw, gradient, wide, "tn added", 1);
      }
    }
  }
}

// Of our own kernels: the bits of a product of those rows by themselves. (bf16 may be oneDNN's, which sums a
// few rows in another order than many.)
TEST(GroupedGemm, HasTheBitsOfSingleProducts) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kF64}) {
    for (const Sizes& s : kSizes) {
      Bench bench(2);
      Lane& lane = bench.lane;
      const Tensor offsets = s.offsets(lane);
      const Tensor x = random(lane, dtype, {s.all(), s.in}, 4), dy = random(lane, dtype, {s.all(), s.out}, 5),
                   w = random(lane, dtype, {s.experts() * s.out, s.in}, 6);
      const Tensor y = ops::grouped_gemm_nt(lane, x, w, offsets),
                   dx = ops::grouped_gemm_nn(lane, dy, w, offsets);
      std::int64_t first = 0;
      for (std::int64_t e = 0; e < s.experts(); ++e) {
        const std::int64_t rows = s.rows[static_cast<std::size_t>(e)];
        if (rows == 0) continue;
        const Tensor own = w.slice(e * s.out, s.out);
        EXPECT_TRUE(same_bits(y.slice(first, rows), ops::gemm_nt(lane, x.slice(first, rows), own)));
        EXPECT_TRUE(same_bits(dx.slice(first, rows), ops::gemm_nn(lane, dy.slice(first, rows), own)));
        first += rows;
      }
    }
  }
}

TEST(GroupedGemm, BackwardIsTheDerivative) {
  Bench bench;
  Lane& lane = bench.lane;
  const Sizes s{{3, 0, 4}, 5, 6, 2};
  const Tensor offsets = s.offsets(lane), x = random(lane, DType::kF64, {s.all(), s.in}, 1),
               dy = random(lane, DType::kF64, {s.all(), s.out}, 2),
               w = random(lane, DType::kF64, {s.experts(), s.out, s.in}, 3),
               dw = zeros(lane, DType::kF64, {s.experts(), s.out, s.in});
  const auto loss = [&] { return dot(ops::grouped_gemm_nt(lane, x, w, offsets), dy); };
  expect_gradient(x, values_of(ops::grouped_gemm_nn(lane, dy, w, offsets)), loss, "dx");
  ops::grouped_gemm_tn_accumulate(lane, dy, x, offsets, dw, 0);
  expect_gradient(w, values_of(dw), loss, "dw");
}

TEST(GroupedGemm, WorkersAndMeta) {
  const Sizes s{{70, 0, 300, 5}, 130, 90, 25};
  for (const DType dtype : kFloating) {
    Bench one(1), two(2), three(3);
    const Tensor offsets = s.offsets(one.lane), x = random(one.lane, dtype, {s.all(), s.in}, 1),
                 dy = random(one.lane, dtype, {s.all(), s.out}, 2),
                 w = random(one.lane, dtype, {s.experts(), s.out, s.in}, 3);
    const auto run = [&](Lane& lane) {
      const Tensor dw = constant(lane, accumulator_of(dtype), w.shape(), 1);
      ops::grouped_gemm_tn_accumulate(lane, dy, x, offsets, dw, 1);
      return std::vector{ops::grouped_gemm_nt(lane, x, w, offsets),
                         ops::grouped_gemm_nn(lane, dy, w, offsets), dw};
    };
    const std::vector<Tensor> first = run(one.lane);
    for (Bench* bench : {&two, &three}) {
      const std::vector<Tensor> again = run(bench->lane);
      for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(same_bits(again[i], first[i])) << i;
    }
    // Memory is planned without offsets, and must suffice for any.
    for (const std::vector<int>& rows :
         {std::vector<int>{375, 0, 0, 0}, {1, 0, 373, 1}, {0, 0, 0, 0}, {63, 129, 127, 31}}) {
      expect_same_plan([&](Lane& lane) {
        const Tensor ends = lane.alloc(DType::kI32, {5}, "offsets"),
                     in = lane.alloc(dtype, {s.all(), s.in}, "x"),
                     weights = lane.alloc(dtype, {s.experts(), s.out, s.in}, "w"),
                     dweights = lane.alloc(accumulator_of(dtype), {s.experts(), s.out, s.in}, "dw");
        if (!lane.meta()) {
          assign(ends, values_of(Sizes{rows, s.out, s.in}.offsets(one.lane)));
          for (const Tensor& t : {in, weights, dweights}) std::memset(t.raw(), 0, t.bytes());
        }
        const Tensor y = ops::grouped_gemm_nt(lane, in, weights, ends);
        const Tensor dx = ops::grouped_gemm_nn(lane, y, weights, ends);
        ops::grouped_gemm_tn_accumulate(lane, y, in, ends, dweights, 1);
      });
    }
  }
}

TEST(GroupedGemm, RefusesWhatDoesNotFit) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor x = zeros(lane, DType::kF32, {4, 3}), w = zeros(lane, DType::kF32, {2, 5, 3});
  const auto offsets = [&](const Values& v) {
    return make(lane, DType::kI32, {static_cast<std::int64_t>(v.size())}, v);
  };
  EXPECT_THROW(ops::grouped_gemm_nt(lane, x, w, offsets({0, 2, 5})), Error);  // past the rows
  EXPECT_THROW(ops::grouped_gemm_nt(lane, x, w, offsets({0, 3, 2})), Error);
  EXPECT_THROW(ops::grouped_gemm_nt(lane, x, w, offsets({0, 2, 3, 4})), Error);
  EXPECT_THROW(ops::grouped_gemm_nn(lane, x, w, offsets({0, 2, 4})), Error);
  EXPECT_THROW(ops::grouped_gemm_nt(lane, zeros(lane, DType::kBF16, {4, 3}), w, offsets({0, 2, 4})), Error);
  EXPECT_THROW(
      ops::grouped_gemm_tn_accumulate(lane, zeros(lane, DType::kF32, {4, 5}), x, offsets({0, 2, 4}), w, 0.5f),
      Error);
}

}  // namespace
}  // namespace weft
