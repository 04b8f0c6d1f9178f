#include "ops/embedding.hpp"

#include "ops/cuda/views.hpp"

namespace weft {
namespace {

using namespace test;

class CudaEmbedding : public OnGpuViews {
 protected:
  // [batch, length], on the CPU; kinds: uniform numbers, Zipf (few rows hold most tokens), one row, none
  // here.
  enum class Ids { kUniform, kZipf, kOne, kElsewhere };
  Tensor ids_of(Ids kind, std::int64_t batch, std::int64_t length, std::int64_t vocabulary) {
    const Tensor ids = zeros(cpu(), DType::kI32, {batch, length});
    for (std::int64_t i = 0; i < ids.elems(); ++i) {
      const double u = static_cast<double>(uniform(philox(RandomKey{3}, static_cast<std::uint64_t>(i))[0]));
      double id = 0;
      switch (kind) {
        case Ids::kUniform:
          id = std::floor(u * static_cast<double>(vocabulary));
          break;
        case Ids::kZipf:
          id = std::floor(std::pow(static_cast<double>(vocabulary), u)) - 1;
          break;
        case Ids::kOne:
          id = static_cast<double>(vocabulary / 2);
          break;
        case Ids::kElsewhere:
          id = i % 2 == 0 ? -100 : static_cast<double>(10 * vocabulary);
          break;
      }
      set_element(ids, i, id);
    }
    if (ids.elems() > 4) set_element(ids, 3, -1);
    return ids;
  }

  // NaN in the rows of dy whose token has no row here: they must not count.
  void spoil_others(const Tensor& dy, const Tensor& ids, std::int64_t first, std::int64_t rows) {
    const std::int64_t batch = dy.dim(1), length = dy.dim(0), h = dy.dim(2);
    for (std::int64_t r = 0; r < dy.rows(); ++r) {
      const double row = element(ids, r % batch * length + r / batch) - static_cast<double>(first);
      if (row >= 0 && row < static_cast<double>(rows)) continue;
      for (std::int64_t j = 0; j < h; ++j) set_element(dy, r * h + j, std::nan(""));
    }
  }
  // The order of sums differs from the reference's, so roundings do: as the root of the longest sum.
  static double sum_rounding(DType dtype, std::int64_t tokens) {
    const double unit_of_sum = rounding(accumulator_of(dtype));
    return unit_of_sum * std::max(1.0, std::sqrt(static_cast<double>(tokens)) / 16);
  }

  void check_backward(DType dtype, Ids kind, const Shape& shape, std::int64_t rows, std::int64_t first,
                      Layout layout, std::initializer_list<float> betas) {
    const std::int64_t s = shape[0], b = shape[1], h = shape[2];
    const Tensor host_ids = ids_of(kind, b, s, rows + 2 * first), host_dy = random(cpu(), dtype, shape, 5);
    spoil_others(host_dy, host_ids, first, rows);
    const Tensor dy = place(host_dy, layout), ids = to_gpu(host_ids), wide_dy = wide(dy);
    const DType sums = accumulator_of(dtype);
    for (const float beta : betas) {
      const Tensor old = random(cpu(), sums, {rows, h}, 6);
      if (beta == 0) ops::fill(cpu(), old, std::nan(""));  // not even read
      const Tensor g = place(old, layout), again = place(old, layout), expected = wide(g);
      ops::embedding_backward(cpu(), wide_dy, host_ids, expected, first, beta);
      poison();
      ops::embedding_backward(gpu(), dy, ids, g, first, beta);
      expect_close(
          g, expected, sum_rounding(dtype, s * b),
          fmt::format("{} {} kind {} beta {}", name_of(dtype), to_string(shape), static_cast<int>(kind), beta)
              .c_str());
      ops::embedding_backward(gpu(), dy, ids, again, first, beta);
      EXPECT_TRUE(same_on_gpu(g, again));
    }
    expect_borders();
  }
};

TEST_F(CudaEmbedding, LooksUp) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t h : {1, 3, 17, 64, 129, 768, 1025}) {
      for (const Layout layout : kLayouts) {
        const std::int64_t s = 9, b = 3, rows = 20, first = 4;
        const Tensor ids = ids_of(Ids::kUniform, b, s, 28), table = normals(dtype, {rows, h}, 1, layout);
        const Tensor expected = ops::embedding(cpu(), ids, to_cpu(table), first);
        poison(1 << 20);
        EXPECT_TRUE(same_bits(to_cpu(ops::embedding(gpu(), to_gpu(ids), table, first)), expected));
      }
    }
  }
}

TEST_F(CudaEmbedding, SumsBackInEveryTypeSizeAndLayout) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t h : {1, 3, 17, 64, 129, 768, 1025}) {
      for (const Layout layout : kLayouts) {
        for (const Ids kind : {Ids::kUniform, Ids::kZipf}) {
          check_backward(dtype, kind, {101, 3, h}, 50, 5, layout, {0, 1, 0.5f});
        }
      }
    }
  }
}

// Around the borders of segments (64 tokens) and of runs that cross them.
TEST_F(CudaEmbedding, RunsAcrossSegments) {
  for (const std::int64_t tokens : {1, 2, 63, 64, 65, 127, 128, 129, 191, 193, 1000}) {
    for (const Ids kind : {Ids::kUniform, Ids::kZipf, Ids::kOne, Ids::kElsewhere}) {
      for (const std::int64_t rows : {1, 2, 3, 30}) {
        check_backward(DType::kF32, kind, {tokens, 1, 8}, rows, 0, Layout::kCompact, {0, 1});
        check_backward(DType::kBF16, kind, {tokens, 1, 5}, rows, 1, Layout::kCompact, {0, 1});
      }
    }
  }
}

// Every token of segment k in row k, but for one more or one less: runs that end exactly at a border.
TEST_F(CudaEmbedding, RunsThatEndAtBorders) {
  for (const std::int64_t run : {31, 32, 63, 64, 65, 128, 192}) {
    const std::int64_t tokens = 640, h = 16, rows = (tokens + run - 1) / run + 1;
    const Tensor ids = zeros(cpu(), DType::kI32, {1, tokens});
    for (std::int64_t i = 0; i < tokens; ++i) set_element(ids, i, static_cast<double>(i / run));
    const Tensor dy = normals(DType::kF32, {tokens, 1, h}, 1),
                 g = view(DType::kF32, {rows, h}, Layout::kCompact);
    const Tensor expected = wide(g);
    ops::embedding_backward(cpu(), wide(dy), ids, expected, 0, 0);
    poison();
    ops::embedding_backward(gpu(), dy, to_gpu(ids), g, 0, 0);
    expect_close(g, expected, sum_rounding(DType::kF32, run), "runs");
  }
}

TEST_F(CudaEmbedding, ManyTokens) {
  check_backward(DType::kBF16, Ids::kZipf, {2048, 16, 64}, 50304, 0, Layout::kCompact, {0, 1});
  check_backward(DType::kBF16, Ids::kOne, {4096, 16, 24}, 50304, 0, Layout::kCompact, {0});
  check_backward(DType::kBF16, Ids::kUniform, {4096, 8, 40}, 70000, 1000, Layout::kAligned, {0});
}

TEST_F(CudaEmbedding, Positions) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t h : {1, 3, 17, 64, 129, 768, 1025}) {
      for (const Layout layout : kLayouts) {
        const std::int64_t s = 5, b = 7, positions = 9, first = 2;
        const Tensor x = normals(dtype, {s, b, h}, 1, layout),
                     table = normals(dtype, {positions, h}, 2, layout),
                     dy = normals(dtype, {s, b, h}, 3, layout), expected = wide(x);
        ops::add_positions(cpu(), expected, wide(table), first);
        ops::add_positions(gpu(), x, table, first);
        expect_close(x, expected, rounding(dtype), "add_positions");
        for (const float beta : {0.0f, 1.0f, 0.5f}) {
          const DType sums = accumulator_of(dtype);
          const Tensor old = random(cpu(), sums, {positions, h}, 4);
          if (beta == 0) ops::fill(cpu(), old, std::nan(""));
          const Tensor g = place(old, layout), again = place(old, layout), reference = wide(g);
          ops::add_positions_backward(cpu(), wide(dy), reference, first, beta);
          ops::add_positions_backward(gpu(), dy, g, first, beta);
          expect_close(g, reference, rounding(sums), "add_positions_backward");
          ops::add_positions_backward(gpu(), dy, again, first, beta);
          EXPECT_TRUE(same_on_gpu(g, again));
        }
        expect_borders();
      }
    }
  }
}

TEST_F(CudaEmbedding, Empty) {
  const Tensor ids = gpu().alloc(DType::kI32, {2, 0}, "ids"), table = normals(DType::kF32, {4, 8}, 1);
  const Tensor y = ops::embedding(gpu(), ids, table, 0), g = copy_of(table);
  EXPECT_EQ(y.elems(), 0);
  ops::embedding_backward(gpu(), y, ids, g, 0, 1);
  EXPECT_TRUE(same_on_gpu(g, table));
  ops::add_positions(gpu(), y, table, 0);
  ops::add_positions_backward(gpu(), y, g, 0, 1);
  EXPECT_TRUE(same_on_gpu(g, table));
  ops::embedding_backward(gpu(), y, ids, g, 0, 0);
  for (const double v : values_of(to_cpu(g))) EXPECT_EQ(v, 0);
}

}  // namespace
}  // namespace weft
