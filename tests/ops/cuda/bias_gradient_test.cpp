#include "ops/gemm.hpp"

#include "ops/cuda/gpu.hpp"
#include "ops/twins.hpp"

namespace weft {
namespace {

using namespace test;

class CudaBiasGradient : public OnGpu {};

struct Case {
  std::int64_t rows, n;
};
// Tails of vectors and tiles, one and several chunks, more rows than the warps of a block take at once.
const std::vector<Case> kCases = {{1, 1},     {3, 17},   {64, 256},   {33, 8},     {1000, 264},
                                  {513, 776}, {4099, 4}, {70, 28680}, {20000, 24}, {31, 1000}};

TEST_F(CudaBiasGradient, SumsColumns) {
  for (const DType dtype : kFloating) {
    const DType wide_type = accumulator_of(dtype);
    for (const Case& c : kCases) {
      for (const bool strided : {false, true}) {
        for (const float beta : {0.0F, 1.0F}) {
          const Tensor x = strided ? random_strided(cpu(), dtype, {c.rows, c.n}, 1)
                                   : random(cpu(), dtype, {c.rows, c.n}, 1);
          const Tensor dy = to_gpu(x);
          const Tensor old = random(cpu(), wide_type, {c.n}, 2, 10);
          const Tensor db = beta == 0 ? gpu_like(old) : to_gpu(old);
          const Tensor reference = cpu().alloc(DType::kF64, {c.n}, "test");
          ops::copy(cpu(), old, reference);
          ops::bias_gradient(cpu(), wide(dy), reference, beta);
          ops::bias_gradient(gpu(), dy, db, beta);
          const std::string what =
              fmt::format("{} {}x{} strided {} beta {}", name_of(dtype), c.rows, c.n, strided, beta);
          expect_close(db, reference, rounding(wide_type), what.c_str());
          const Tensor again = beta == 0 ? gpu_like(old) : to_gpu(old);
          ops::bias_gradient(gpu(), dy, again, beta);
          EXPECT_TRUE(same_bits(to_cpu(db), to_cpu(again))) << what;
        }
      }
    }
  }
}

// Every element counts once: with a single 1 in a matrix of zeros, in turn in places that lie in different
// vectors, warps, chunks and tiles.
TEST_F(CudaBiasGradient, EveryRowOnce) {
  const std::int64_t rows = 700, n = 520;
  for (const std::int64_t row : {0, 7, 8, 31, 32, 63, 350, 699}) {
    for (const std::int64_t column : {0, 7, 255, 256, 511, 519}) {
      const Tensor x = zeros(cpu(), DType::kBF16, {rows, n});
      set_element(x, row * n + column, 1);
      const Tensor db = gpu_like(zeros(cpu(), DType::kF32, {n}));
      ops::bias_gradient(gpu(), to_gpu(x), db, 0);
      const Tensor got = to_cpu(db);
      for (std::int64_t j = 0; j < n; ++j) {
        ASSERT_EQ(element(got, j), j == column ? 1 : 0) << row << ", " << column << " at " << j;
      }
    }
  }
}

TEST_F(CudaBiasGradient, NoRows) {
  const Tensor dy = gpu().alloc(DType::kBF16, {0, 24}, "test");
  const Tensor db = gpu_like(zeros(cpu(), DType::kF32, {24}));
  ops::bias_gradient(gpu(), dy, db, 0);
  for (const double v : values_of(to_cpu(db))) EXPECT_EQ(v, 0);
}

TEST(CudaBiasGradientChunks, ScratchStaysSmall) {
  Bench meta(Arena::meta());
  for (const std::int64_t rows : {0, 1, 31, 8192, 65536}) {
    for (const std::int64_t n : {1, 768, 28672, 128256}) {
      const std::int64_t chunks = ops::cuda::bias_gradient_chunks(meta.lane, rows, n);
      EXPECT_GE(chunks, 1);
      EXPECT_LE(chunks, 132 * 6);
      EXPECT_LE(chunks, std::max<std::int64_t>(1, (rows + 31) / 32));
      EXPECT_LE(chunks * n, std::max<std::int64_t>(4 * n, 132 * 6 * 256 * 2));
    }
  }
}

}  // namespace
}  // namespace weft
