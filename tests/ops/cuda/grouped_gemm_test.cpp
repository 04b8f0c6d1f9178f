#include "ops/cuda/views.hpp"
#include "ops/moe.hpp"

namespace weft {
namespace {

using namespace test;

struct Case {
  const char* what;
  std::vector<int> counts;  // rows of each expert
  std::int64_t out, in;
  std::int64_t rest = 0;  // rows of nobody
};

class CudaGroupedGemm : public OnGpuViews {
 protected:
  Tensor offsets_of(const Case& c) {
    Values ends = {0};
    for (const int count : c.counts) ends.push_back(ends.back() + count);
    return make(cpu(), DType::kI32, {static_cast<std::int64_t>(ends.size())}, ends);
  }
  static std::int64_t rows_of(const Case& c) {
    std::int64_t rows = c.rest;
    for (const int count : c.counts) rows += count;
    return rows;
  }
  // Rounding of the result, and of sums of `depth` products.
  static double bound(DType inputs, DType result, std::int64_t depth) {
    if (inputs == DType::kF64) return 1e-13;
    return rounding(result) + 3e-7 * std::sqrt(static_cast<double>(depth));
  }
  void all_forms(DType dtype, const Case& c, Layout layout);
};

void CudaGroupedGemm::all_forms(DType dtype, const Case& c, Layout layout) {
  const std::string text = fmt::format("{} {} {}", c.what, name_of(dtype), static_cast<int>(layout));
  const auto experts = static_cast<std::int64_t>(c.counts.size());
  const std::int64_t rows = rows_of(c);
  const Tensor host_offsets = offsets_of(c), offsets = to_gpu(host_offsets);
  const Tensor x = normals(dtype, {rows, c.in}, 1, layout), dy = normals(dtype, {rows, c.out}, 2, layout),
               w = normals(dtype, {experts * c.out, c.in}, 3, layout);
  const Tensor wide_x = wide(x), wide_dy = wide(dy), wide_w = wide(w);
  poison();
  const Tensor y = ops::grouped_gemm_nt(gpu(), x, w, offsets);
  expect_close(y, ops::grouped_gemm_nt(cpu(), wide_x, wide_w, host_offsets), bound(dtype, dtype, c.in),
               (text + " nt").c_str());
  EXPECT_TRUE(same_on_gpu(y, ops::grouped_gemm_nt(gpu(), x, w, offsets))) << text;
  poison();
  const Tensor dx = ops::grouped_gemm_nn(gpu(), dy, w, offsets);
  expect_close(dx, ops::grouped_gemm_nn(cpu(), wide_dy, wide_w, host_offsets), bound(dtype, dtype, c.out),
               (text + " nn").c_str());
  EXPECT_TRUE(same_on_gpu(dx, ops::grouped_gemm_nn(gpu(), dy, w, offsets))) << text;
  for (const DType sums : {accumulator_of(dtype), dtype}) {
    for (const float beta : {0.0f, 1.0f}) {
      const Tensor dw = beta == 0 ? view(sums, {experts * c.out, c.in}, layout)
                                  : normals(sums, {experts * c.out, c.in}, 4, layout);
      const Tensor expected = beta == 0 ? zeros(cpu(), DType::kF64, dw.shape()) : wide(dw);
      ops::grouped_gemm_tn_accumulate(cpu(), wide_dy, wide_x, host_offsets, expected, beta);
      ops::grouped_gemm_tn_accumulate(gpu(), dy, x, offsets, dw, beta);
      expect_close(dw, expected, bound(dtype, sums, rows),
                   fmt::format("{} tn {} beta {}", text, name_of(sums), beta).c_str());
    }
  }
  expect_borders();
}

const std::vector<Case> kCases = {
    {"one row", {1}, 8, 8},
    {"none", {0, 0, 0}, 24, 16, 5},
    {"small", {3, 0, 17, 64, 1}, 40, 72, 3},
    {"all to one", {0, 0, 700, 0}, 264, 136},
    {"tiles that end", {128, 64, 65, 127, 129, 256, 255, 257, 192, 193}, 256, 128, 130},
    {"wide", {500, 33, 0, 300}, 776, 520},
    {"many", std::vector<int>(70, 19), 64, 64, 1},
    {"odd sizes", {5, 0, 70, 9}, 37, 53, 2},
};

TEST_F(CudaGroupedGemm, BF16) {
  for (const Case& c : kCases) all_forms(DType::kBF16, c, Layout::kCompact);
}
TEST_F(CudaGroupedGemm, F16) {
  for (const Case& c : kCases) all_forms(DType::kF16, c, Layout::kCompact);
}
TEST_F(CudaGroupedGemm, F32) {
  for (const Case& c : kCases) all_forms(DType::kF32, c, Layout::kCompact);
}
TEST_F(CudaGroupedGemm, Layouts) {
  for (const DType dtype : {DType::kBF16, DType::kF64}) {
    for (const Layout layout : {Layout::kAligned, Layout::kOdd}) all_forms(dtype, kCases[4], layout);
  }
}

// Not a number in an expert's rows stays there.
TEST_F(CudaGroupedGemm, ExpertsDoNotMeet) {
  const Case c{"nan", {100, 130, 20}, 64, 128};
  const Tensor offsets = to_gpu(offsets_of(c));
  const Tensor x = random(cpu(), DType::kBF16, {250, c.in}, 1),
               dy = random(cpu(), DType::kBF16, {250, c.out}, 2);
  for (std::int64_t r = 100; r < 230; ++r) {
    set_element(x, r * c.in + 3, std::nan(""));
    set_element(dy, r * c.out + 5, INFINITY);
  }
  const Tensor dw = to_gpu(zeros(cpu(), DType::kF32, {3 * c.out, c.in}));
  ops::grouped_gemm_tn_accumulate(gpu(), to_gpu(dy), to_gpu(x), offsets, dw, 1);
  const Tensor got = to_cpu(dw);
  for (std::int64_t i = 0; i < got.elems(); ++i) {
    const bool other = i / (c.out * c.in) != 1;
    ASSERT_TRUE(!other || std::isfinite(element(got, i))) << i;
  }
  EXPECT_TRUE(std::isnan(element(got, c.out * c.in + 3)));
}

// Offsets are read on the device: what was recorded follows them.
TEST_F(CudaGroupedGemm, RecordedWorkFollowsTheOffsets) {
  const Case a{"", {40, 0, 90}, 64, 64}, b{"", {0, 129, 1}, 64, 64};
  const Tensor offsets = to_gpu(offsets_of(a)), w = normals(DType::kBF16, {3 * 64, 64}, 3),
               x = normals(DType::kBF16, {130, 64}, 1);
  ops::grouped_gemm_nt(gpu(), x, w, offsets);
  Tensor y;
  const auto work = gpu().tools->record([&] { y = ops::grouped_gemm_nt(gpu(), x, w, offsets); });
  ops::copy(gpu(), offsets_of(b), offsets);
  work->replay();
  expect_close(y, ops::grouped_gemm_nt(cpu(), wide(x), wide(w), offsets_of(b)),
               bound(DType::kBF16, DType::kBF16, 64), "recorded");
}

}  // namespace
}  // namespace weft
