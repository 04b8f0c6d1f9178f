#include "ops/elementwise.hpp"

#include <limits>

#include "ops/cuda/views.hpp"
#include "ops/flat_pieces.hpp"

namespace weft {
namespace {

using namespace test;

class CudaElementwise : public OnGpuViews {};

const std::vector<Shape> kShapes = {{1},     {3},      {17},      {129},      {100003},  {5, 1},       {5, 3},
                                    {5, 64}, {7, 129}, {3, 1025}, {300, 768}, {7001, 2}, {4, 3, 2, 17}};
const std::vector<DType> kAll = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64,
                                 DType::kI32, DType::kI16, DType::kU16,  DType::kI8,  DType::kU8};

TEST_F(CudaElementwise, FillsEveryTypeAndLayout) {
  for (const DType dtype : kAll) {
    for (const Shape& shape : kShapes) {
      for (const Layout layout : kLayouts) {
        const Tensor x = view(dtype, shape, layout);
        ops::fill(gpu(), x, 3);
        const Tensor got = wide(x);
        for (std::int64_t i = 0; i < got.elems(); ++i) ASSERT_EQ(element(got, i), 3) << name_of(dtype) << i;
        expect_borders();
      }
    }
  }
  const Tensor x = view(DType::kBF16, {1000}, Layout::kCompact);
  ops::fill(gpu(), x, 1.00390625);  // half way between two numbers: to the even one
  EXPECT_EQ(element(to_cpu(x), 999), 1);
}

TEST_F(CudaElementwise, CopiesAndConvertsAsTheCpuDoes) {
  for (const DType from : kAll) {
    for (const DType to : kAll) {
      const bool sign = from != DType::kU16 && from != DType::kU8 && to != DType::kU16 && to != DType::kU8;
      for (const Shape& shape : {Shape{1}, Shape{129}, Shape{5, 3}, Shape{9, 64}, Shape{3, 1025}}) {
        const Tensor numbers = random(cpu(), DType::kF64, shape, 1, 20);
        if (!sign) {
          for (std::int64_t i = 0; i < numbers.elems(); ++i)
            set_element(numbers, i, std::fabs(element(numbers, i)));
        }
        const Tensor x = ops::cast(cpu(), numbers, from, "x"), expected = ops::cast(cpu(), x, to, "y");
        for (const Layout in : kLayouts) {
          for (const Layout out : kLayouts) {
            const Tensor y = view(to, shape, out);
            ops::copy(gpu(), place(x, in), y);
            ASSERT_TRUE(same_bits(to_cpu(y), expected))
                << name_of(from) << " to " << name_of(to) << " " << to_string(shape);
            expect_borders();
          }
        }
      }
    }
  }
}

TEST_F(CudaElementwise, CopiesToAndFromHostMemory) {
  for (const DType host : kAll) {
    for (const DType device : kAll) {
      const Shape shape = {7, 33};
      const Tensor numbers = random(cpu(), DType::kF64, {7, 40}, 1, 20);
      for (std::int64_t i = 0; i < numbers.elems(); ++i)
        set_element(numbers, i, std::fabs(element(numbers, i)));
      for (const bool strided : {false, true}) {
        Tensor x = ops::cast(cpu(), numbers, host, "x").slice_columns(4, 33);
        if (!strided) x = ops::cast(cpu(), x, host, "x");
        const Tensor expected = ops::cast(cpu(), x, device, "expected");
        const Tensor back_expected = ops::cast(cpu(), expected, host, "expected");
        for (const Layout layout : kLayouts) {
          const Tensor y = view(device, shape, layout);
          ops::copy(gpu(), x, y);
          ASSERT_TRUE(same_bits(to_cpu(y), expected)) << name_of(host) << " to " << name_of(device);
          const Tensor around = cpu().alloc(host, {7, 40}, "back");
          ops::fill(cpu(), around, 77);
          const Tensor back = strided ? around.slice_columns(5, 33) : cpu().alloc(host, shape, "back");
          ops::copy(gpu(), y, back);
          ASSERT_TRUE(same_bits(back, back_expected)) << name_of(device) << " to " << name_of(host);
          const Tensor untouched = ops::cast(cpu(), around.slice_columns(0, 5), DType::kF64, "left");
          for (const double v : values_of(untouched)) ASSERT_EQ(v, 77);
          expect_borders();
        }
      }
    }
  }
  // From host to host on a GPU's lane.
  const Tensor x = random(cpu(), DType::kF32, {3, 5}, 2), y = cpu().alloc(DType::kBF16, {3, 5}, "y");
  ops::copy(gpu(), x, y);
  EXPECT_TRUE(same_bits(y, ops::cast(cpu(), x, DType::kBF16, "expected")));
}

TEST_F(CudaElementwise, SpecialValuesSurviveConversion) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Values v(64, 1.0);
  v[3] = kInf, v[5] = -kInf, v[7] = std::nan(""), v[9] = 1e38, v[10] = -0.0, v[11] = 1e-7, v[12] = 1e-40;
  v[13] = 65519, v[14] = 65520, v[15] = -3.4e38;
  const Tensor x = make(cpu(), DType::kF32, {64}, v);
  for (const DType dtype : kFloating) {
    const Tensor y = gpu().alloc(dtype, {64}, "y");
    ops::copy(gpu(), to_gpu(x), y);
    const Tensor got = to_cpu(y), expected = ops::cast(cpu(), x, dtype, "expected");
    for (std::int64_t i = 0; i < 64; ++i) {
      const double a = element(got, i), b = element(expected, i);
      EXPECT_TRUE((std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)))
          << name_of(dtype) << " " << i << ": " << a << ", " << b;
    }
  }
}

// More than there are slots of pinned memory, of growing sizes; the host memory is used again at once.
TEST_F(CudaElementwise, UploadsDoNotMix) {
  std::vector<Tensor> all;
  for (int i = 0; i < 150; ++i) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(1 + 61 * i), i);
    all.push_back(gpu().alloc(DType::kI32, {static_cast<std::int64_t>(values.size())}, "upload"));
    ops::from_host(gpu(), values, all.back());
    std::fill(values.begin(), values.end(), -7);
  }
  for (int i = 0; i < 150; ++i) {
    for (const std::int32_t v : ops::to_host<std::int32_t>(gpu(), all[static_cast<std::size_t>(i)]))
      ASSERT_EQ(v, i);
  }
}

TEST_F(CudaElementwise, AddsAndScalesInPlace) {
  for (const DType dtype : kFloating) {
    for (const Shape& shape : kShapes) {
      for (const Layout layout : kLayouts) {
        for (const DType other : kFloating) {
          const Layout theirs = other == dtype ? layout : Layout::kCompact;
          const Tensor x = normals(dtype, shape, 1, layout), y = normals(other, shape, 2, theirs);
          const Tensor expected = wide(x);
          // The sum is of numbers of the accumulator type.
          const Tensor addend = other == DType::kF64 ? wide(y, accumulator_of(dtype)) : wide(y);
          ops::add_in_place(cpu(), expected, addend);
          ops::add_in_place(gpu(), x, y);
          expect_close(x, expected, std::max(rounding(dtype), rounding(accumulator_of(dtype))), "add");
          expect_borders();
        }
        const Tensor x = normals(dtype, shape, 3, layout), expected = wide(x);
        ops::scale_in_place(cpu(), expected, -0.75);
        ops::scale_in_place(gpu(), x, -0.75);
        expect_close(x, expected, rounding(dtype), "scale");
        expect_borders();
      }
    }
  }
}

TEST_F(CudaElementwise, SumsAreExactEnoughAndTheSameInEveryLayout) {
  for (const DType dtype : kFloating) {
    for (const Shape& shape :
         std::vector<Shape>{{1}, {17, 65}, {4096}, {4097}, {64, 64}, {3, 77, 192}, {3000017}}) {
      const Tensor x = random(cpu(), dtype, shape, 1);
      long double sum = 0, size = 0;
      for (const double v : values_of(x)) sum += v, size += std::fabs(v);
      Tensor first;
      for (const Layout layout : kLayouts) {
        for (int run = 0; run < 2; ++run) {
          const Tensor y = place(x, layout), out = view(DType::kF64, {1}, Layout::kCompact);
          poison();
          ops::sum(gpu(), y, out);
          ASSERT_NEAR(element(to_cpu(out), 0), static_cast<double>(sum), 1e-13 * static_cast<double>(size));
          if (!first.defined()) first = out;
          EXPECT_TRUE(same_on_gpu(out, first));
        }
      }
    }
  }
}

TEST_F(CudaElementwise, SumsOfSquaresByTag) {
  const std::vector<ops::FlatPiece> list = {
      {.offset = 5, .elems = 100000, .tag = 2},     {.offset = 100007, .elems = 1, .tag = 0},
      {.offset = 100011, .elems = 32768, .tag = 4}, {.offset = 140000, .elems = 0, .tag = 1},
      {.offset = 140001, .elems = 2, .tag = 2},     {.offset = 140008, .elems = 65537, .tag = 0},
      {.offset = 300003, .elems = 13, .tag = 4}};
  for (const DType dtype : kFloating) {
    Tensor x = constant(cpu(), dtype, {300020}, std::nan(""));  // what no piece holds
    Values expected(6, 0.0);
    for (const ops::FlatPiece& p : list) {
      const Tensor part = random(cpu(), dtype, {p.elems}, static_cast<std::uint64_t>(p.offset));
      ops::copy(cpu(), part, x.slice(p.offset, p.elems));
      for (const double v : values_of(part)) expected[static_cast<std::size_t>(p.tag)] += v * v;
    }
    const ops::FlatPieces pieces(gpu(), list), none(gpu(), {});
    const Tensor y = to_gpu(x), out = view(DType::kF64, {6}, Layout::kCompact), again = copy_of(out);
    poison();
    ops::sums_of_squares(gpu(), pieces, y, out);
    const Values got = values_of(to_cpu(out));
    for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(got[i], expected[i], 1e-12 * expected[i]) << i;
    ops::sums_of_squares(gpu(), pieces, y, again);
    EXPECT_TRUE(same_on_gpu(out, again));
    ops::sums_of_squares(gpu(), none, y, again);
    for (const double v : values_of(to_cpu(again))) EXPECT_EQ(v, 0);
  }
}

TEST_F(CudaElementwise, FindsTheFirstNonfinite) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t columns : {200, 192}) {
      for (const Layout layout : kLayouts) {
        const Tensor x = random(cpu(), dtype, {300, columns}, 1);
        const auto find = [&] { return ops::find_nonfinite(gpu(), place(x, layout)); };
        EXPECT_EQ(find(), -1);
        set_element(x, x.elems() - 1, std::nan(""));
        EXPECT_EQ(find(), x.elems() - 1);
        set_element(x, 20001, std::numeric_limits<double>::infinity());
        set_element(x, 20007, std::nan(""));
        EXPECT_EQ(find(), 20001);
        for (std::int64_t i = 12347; i < 30000; ++i) set_element(x, i, std::nan(""));
        EXPECT_EQ(find(), 12347);
        set_element(x, 0, -std::numeric_limits<double>::infinity());
        EXPECT_EQ(find(), 0);
      }
    }
  }
}

TEST_F(CudaElementwise, EmptyTensors) {
  for (const Shape& shape : {Shape{0}, Shape{0, 5}, Shape{3, 0}}) {
    const Tensor x = gpu().alloc(DType::kBF16, shape, "x"), y = gpu().alloc(DType::kF32, shape, "y"),
                 host = cpu().alloc(DType::kF32, shape, "host");
    ops::fill(gpu(), x, 1);
    ops::copy(gpu(), x, y);
    ops::copy(gpu(), host, x);
    ops::copy(gpu(), x, host);
    ops::upload(gpu(), host, y);
    ops::add_in_place(gpu(), x, y);
    ops::scale_in_place(gpu(), x, 2);
    EXPECT_EQ(ops::find_nonfinite(gpu(), x), -1);
    const Tensor out = view(DType::kF64, {1}, Layout::kCompact);
    ops::sum(gpu(), x, out);
    EXPECT_EQ(element(to_cpu(out), 0), 0);
  }
}

}  // namespace
}  // namespace weft
