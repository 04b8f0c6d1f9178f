#include "ops/gemm.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "ops/cuda/gemm_plans.hpp"
#include "ops/cuda/gpu.hpp"
#include "ops/cuda/tools.hpp"

namespace weft {
namespace {

using namespace test;
using ops::OpenedDevice;

struct Size {
  std::int64_t m, n, k;
};
const std::vector<Size> kSizes = {{1, 1, 1},       {3, 17, 129},    {17, 3, 1},      {1, 768, 17},
                                  {129, 1, 768},   {129, 129, 129}, {768, 1000, 17}, {17, 129, 1000},
                                  {768, 129, 768}, {64, 256, 512},  {1000, 768, 3}};

class CudaGemm : public OnGpu {
 protected:
  // Another set of tools on the GPU of the fixture.
  struct Other {
    OpenedDevice device;
    Lane lane;
    Other(Lane& like, const ops::DeviceOptions& options)
        : device(ops::open_device(like.device(), options)),
          lane{like.arena, like.workers, device.compute, device.tools.get()} {
      // Operands were made on the other stream.
      EXPECT_EQ(cudaStreamSynchronize(ops::cuda::stream(like)), cudaSuccess);
    }
    const ops::cuda::GemmPlans& plans() const {
      return *static_cast<const ops::cuda::Tools&>(*device.tools).gemms;
    }
  };

  // A bound on ‖gpu − exact‖ / ‖exact‖: rounding of the result, and of k partial sums. TF32 (11 bits) and
  // sums kept in 16 bits are far outside.
  static double bound(DType inputs, DType result, std::int64_t k) {
    const double root = std::sqrt(static_cast<double>(k));
    if (inputs == DType::kF64) return 1e-14 + 1e-16 * root;
    return rounding(result) + (inputs == DType::kF32 ? 6e-8 : 3e-7) * root;
  }

  // A result [rows, columns] inside wider rows of NaN; nothing beside it may be written.
  struct Inside {
    Tensor whole, view;
  };
  Inside inside(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t left = 3) {
    Inside r;
    r.whole = gpu().alloc(dtype, {rows, columns + left + 2}, "test");
    ops::fill(gpu(), r.whole, std::nan(""));
    r.view = r.whole.slice_columns(left, columns);
    return r;
  }
  void expect_untouched(const Inside& r, const std::string& what) {
    const Tensor host = to_cpu(r.whole);
    const std::int64_t columns = r.whole.columns();
    const std::int64_t left = static_cast<std::int64_t>(
        static_cast<std::size_t>(r.view.raw() - r.whole.raw()) / bytes_of(r.whole.dtype()));
    for (std::int64_t i = 0; i < host.elems(); ++i) {
      const std::int64_t j = i % columns;
      if (j >= left && j < left + r.view.columns()) continue;
      ASSERT_TRUE(std::isnan(element(host, i))) << what << ": wrote row " << i / columns << " column " << j;
    }
  }
  void expect_same(const Tensor& a, const Tensor& b, const std::string& what) {
    EXPECT_TRUE(same_bits(to_cpu(a), to_cpu(b))) << what;
  }

  void all_forms(DType dtype, const Size& size, bool strided);
};

void CudaGemm::all_forms(DType dtype, const Size& size, bool strided) {
  const auto [m, n, k] = size;
  const std::string what = fmt::format("{} {}x{}x{}{}", name_of(dtype), m, n, k, strided ? " strided" : "");
  const auto operand = [&](std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
    return to_gpu(strided ? random_strided(cpu(), dtype, {rows, columns}, seed)
                          : random(cpu(), dtype, {rows, columns}, seed));
  };
  const Tensor x = operand(m, k, 1), w = operand(n, k, 2), dy = operand(m, n, 4);
  const Tensor bias = to_gpu(random(cpu(), dtype, {n}, 3, 5));
  const Tensor wide_x = wide(x), wide_w = wide(w), wide_dy = wide(dy);
  const DType sums = accumulator_of(dtype);

  std::vector<DType> results = {dtype};
  if (sums != dtype) results.push_back(sums);
  for (const DType result : results) {
    const std::string to = what + " to " + std::string(name_of(result));
    for (const bool with_bias : {false, true}) {
      Tensor y = cpu().alloc(DType::kF64, {m, n}, "test");
      ops::gemm_nt_into(cpu(), wide_x, wide_w, with_bias ? wide(bias) : Tensor(), y);
      const Inside got = inside(result, m, n);
      ops::gemm_nt_into(gpu(), x, w, with_bias ? bias : Tensor(), got.view);
      expect_close(got.view, y, bound(dtype, result, k), (to + (with_bias ? " nt + bias" : " nt")).c_str());
      expect_untouched(got, to + " nt");
      const Inside again = inside(result, m, n);
      ops::gemm_nt_into(gpu(), x, w, with_bias ? bias : Tensor(), again.view);
      expect_same(got.view, again.view, to + " nt again");
    }
  }
  const Tensor dx = ops::gemm_nn(cpu(), wide_dy, wide_w);
  const Inside got_dx = inside(dtype, m, k);
  ops::gemm_nn_into(gpu(), dy, w, got_dx.view);
  expect_close(got_dx.view, dx, bound(dtype, dtype, n), (what + " nn").c_str());
  expect_untouched(got_dx, what + " nn");

  // beta 0 first (NaNs are overwritten), then 1 on top of it.
  Tensor dw = cpu().alloc(DType::kF64, {n, k}, "test");
  ops::gemm_tn_accumulate(cpu(), wide_dy, wide_x, dw, 0);
  const Inside got_dw = inside(sums, n, k);
  ops::gemm_tn_accumulate(gpu(), dy, x, got_dw.view, 0);
  expect_close(got_dw.view, dw, bound(dtype, sums, m), (what + " tn").c_str());
  const Inside again = inside(sums, n, k);
  ops::gemm_tn_accumulate(gpu(), dy, x, again.view, 0);
  expect_same(got_dw.view, again.view, what + " tn again");
  ops::gemm_tn_accumulate(cpu(), wide_dy, wide_x, dw, 1);
  ops::gemm_tn_accumulate(gpu(), dy, x, got_dw.view, 1);
  expect_close(got_dw.view, dw, bound(dtype, sums, m), (what + " tn beta 1").c_str());
  expect_untouched(got_dw, what + " tn");
}

TEST_F(CudaGemm, AllFormsF32) {
  for (const Size& size : kSizes) {
    all_forms(DType::kF32, size, false);
    all_forms(DType::kF32, size, true);
  }
}
TEST_F(CudaGemm, AllFormsF64) {
  for (const Size& size : kSizes) all_forms(DType::kF64, size, size.m % 2 == 0);
}
TEST_F(CudaGemm, AllFormsBF16) {
  for (const Size& size : kSizes) {
    all_forms(DType::kBF16, size, false);
    all_forms(DType::kBF16, size, true);
  }
}
TEST_F(CudaGemm, AllFormsF16) {
  for (const Size& size : kSizes) all_forms(DType::kF16, size, size.m % 2 == 0);
}

// The first product of a shape may be one that adds: it takes no measurements, which would add many times.
TEST_F(CudaGemm, FirstUseMayAdd) {
  const std::int64_t m = 200, n = 96, k = 72;
  Other other(gpu(), {});
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Tensor dy = to_gpu(random(cpu(), dtype, {m, n}, 1)), x = to_gpu(random(cpu(), dtype, {m, k}, 2));
    const Tensor start = random(cpu(), DType::kF32, {n, k}, 3, 30), dw = to_gpu(start);
    const Tensor expected = wide(dw);
    const int tuned = other.plans().tuned();
    ops::gemm_tn_accumulate(other.lane, dy, x, dw, 1);
    ops::gemm_tn_accumulate(cpu(), wide(dy), wide(x), expected, 1);
    EXPECT_EQ(other.plans().tuned(), tuned);
    EXPECT_EQ(cudaStreamSynchronize(ops::cuda::stream(other.lane)), cudaSuccess);
    expect_close(dw, expected, bound(dtype, DType::kF32, m), "beta 1 first");
    ops::gemm_tn_accumulate(other.lane, dy, x, dw, 0);  // now it is tuned, once
    EXPECT_EQ(other.plans().tuned(), tuned + 1);
    ops::gemm_tn_accumulate(other.lane, dy, x, dw, 1);
    ops::gemm_tn_accumulate(other.lane, dy, x, dw, 0);
    EXPECT_EQ(other.plans().tuned(), tuned + 1);
    EXPECT_EQ(cudaStreamSynchronize(ops::cuda::stream(other.lane)), cudaSuccess);
    ops::gemm_tn_accumulate(cpu(), wide(dy), wide(x), expected, 0);
    expect_close(dw, expected, bound(dtype, DType::kF32, m), "beta 0 later");
  }
}

// m, n or k of 0: nothing, or beta · c (+ bias).
TEST_F(CudaGemm, EmptyProducts) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64}) {
    const Tensor x = gpu().alloc(dtype, {5, 0}, "x"), w = gpu().alloc(dtype, {7, 0}, "w");
    const Tensor bias = to_gpu(random(cpu(), dtype, {7}, 1));
    const Inside y = inside(dtype, 5, 7);
    ops::gemm_nt_into(gpu(), x, w, {}, y.view);
    for (const double v : values_of(to_cpu(y.view))) EXPECT_EQ(v, 0);
    ops::gemm_nt_into(gpu(), x, w, bias, y.view);
    const Tensor host = to_cpu(y.view), row = to_cpu(bias);
    for (std::int64_t i = 0; i < host.elems(); ++i) EXPECT_EQ(element(host, i), element(row, i % 7));
    expect_untouched(y, "k 0");
    const Tensor dy = gpu().alloc(dtype, {0, 7}, "dy"), in = gpu().alloc(dtype, {0, 4}, "x");
    const Tensor dw = to_gpu(constant(cpu(), accumulator_of(dtype), {7, 4}, 3));
    ops::gemm_tn_accumulate(gpu(), dy, in, dw, 1);
    for (const double v : values_of(to_cpu(dw))) EXPECT_EQ(v, 3);
    ops::gemm_tn_accumulate(gpu(), dy, in, dw, 0);
    for (const double v : values_of(to_cpu(dw))) EXPECT_EQ(v, 0);
    EXPECT_EQ(ops::gemm_nn(gpu(), dy, gpu().alloc(dtype, {7, 4}, "w")).elems(), 0);
  }
}

// A view of another alignment is another plan: the fast kernel of the first must not meet the second.
TEST_F(CudaGemm, AlignmentIsPartOfThePlan) {
  const std::int64_t m = 128, n = 64, k = 96;
  const Tensor host = random(cpu(), DType::kBF16, {m, k + 8}, 1);
  const Tensor x = to_gpu(host), w = to_gpu(random(cpu(), DType::kBF16, {n, k}, 2));
  for (const std::int64_t shift : {0, 8, 4, 2, 1, 3}) {
    const Tensor view = x.slice_columns(shift, k);
    const Tensor y = ops::gemm_nt(gpu(), view, w);
    const Tensor expected = ops::gemm_nt(cpu(), wide(view), wide(w));
    expect_close(y, expected, bound(DType::kBF16, DType::kBF16, k), fmt::format("shift {}", shift).c_str());
  }
}

// Untuned products are the library's first choice in every run; tuned ones are right as well.
TEST_F(CudaGemm, TuningIsAChoice) {
  const Tensor x = to_gpu(random(cpu(), DType::kBF16, {512, 384}, 1)),
               w = to_gpu(random(cpu(), DType::kBF16, {640, 384}, 2));
  const Tensor expected = ops::gemm_nt(cpu(), wide(x), wide(w));
  std::vector<Tensor> untuned;
  for (const bool tune : {false, false, true}) {
    Other other(gpu(), {.tune = tune});
    const Tensor y = ops::gemm_nt(other.lane, x, w);
    EXPECT_EQ(cudaStreamSynchronize(ops::cuda::stream(other.lane)), cudaSuccess);
    EXPECT_EQ(other.plans().tuned(), tune ? 1 : 0);
    expect_close(y, expected, bound(DType::kBF16, DType::kBF16, 384), tune ? "tuned" : "untuned");
    if (!tune) untuned.push_back(y);
  }
  expect_same(untuned[0], untuned[1], "untuned");
}

TEST_F(CudaGemm, TunedPlansAreKeptBetweenRuns) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("weft_gemm_plans_{}", getpid());
  const auto text = [&] {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  std::filesystem::remove(path);
  const Tensor x = to_gpu(random(cpu(), DType::kBF16, {384, 512}, 1)),
               w = to_gpu(random(cpu(), DType::kBF16, {256, 512}, 2)),
               bias = to_gpu(random(cpu(), DType::kBF16, {256}, 3));
  const auto run = [&](int tuned, int remembered, const ops::DeviceOptions& options) {
    Other other(gpu(), options);
    const Tensor y = ops::gemm_nt(other.lane, x, w), z = ops::gemm_nt(other.lane, x, w, bias);
    EXPECT_EQ(cudaStreamSynchronize(ops::cuda::stream(other.lane)), cudaSuccess);
    EXPECT_EQ(other.plans().tuned(), tuned);
    EXPECT_EQ(other.plans().remembered(), remembered);
    return std::pair(y, z);
  };
  const ops::DeviceOptions kept{.plan_cache = path.string()};
  const auto first = run(2, 0, kept);
  const std::string written = text();
  EXPECT_NE(written.find("cuBLASLt"), std::string::npos);
  const auto second = run(0, 2, kept);
  expect_same(first.first, second.first, "remembered");
  expect_same(first.second, second.second, "remembered with bias");
  EXPECT_EQ(text(), written);
  run(0, 0, {.plan_cache = path.string(), .tune = false});  // neither read nor written
  EXPECT_EQ(text(), written);
  std::ofstream(path, std::ios::app) << "rubbish\n";
  run(2, 0, kept);
  EXPECT_EQ(text().find("rubbish"), std::string::npos);
  std::filesystem::remove(path);
}

// Scratch is a function of the shape: the plan on meta memory counts what the GPU takes.
TEST_F(CudaGemm, MetaLanePlansTheSame) {
  const auto run = [](Lane& lane) {
    const Tensor x = lane.alloc(DType::kBF16, {2048, 1024}, "x"),
                 w = lane.alloc(DType::kBF16, {512, 1024}, "w");
    if (!lane.meta()) {
      ops::fill(lane, x, 0);
      ops::fill(lane, w, 0);
    }
    lane.arena.reset_high_water();
    const std::size_t before = lane.arena.high_water();
    ops::gemm_nt(lane, x, w);
    return lane.arena.high_water() - before;
  };
  Bench meta(Arena::meta(DeviceKind::kCuda));
  EXPECT_EQ(run(meta.lane), run(gpu()));
}

}  // namespace
}  // namespace weft
