#include "core/tensor.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace weft {
namespace {

class TensorViews : public testing::Test {
 protected:
  void SetUp() override { std::iota(values_.begin(), values_.end(), 0); }
  std::vector<std::int32_t> values_ = std::vector<std::int32_t>(3 * 4 * 10);
  Tensor x_ = Tensor::borrow(values_.data(), DType::kI32, {3, 4, 10});
};

TEST_F(TensorViews, SlicesShareMemory) {
  const Tensor rows = x_.slice(1, 2);
  EXPECT_EQ(rows.shape(), (Shape{2, 4, 10}));
  EXPECT_EQ(rows.data<std::int32_t>()[0], 40);
  const Tensor columns = x_.slice_columns(3, 5);
  EXPECT_EQ(columns.shape(), (Shape{3, 4, 5}));
  EXPECT_EQ(columns.ld(), 10);
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(columns.data<std::int32_t>()[columns.ld()], 13);
  const Tensor both = columns.slice(2, 1).slice_columns(1, 2);
  EXPECT_EQ(both.data<std::int32_t>()[0], 84);
  EXPECT_EQ(both.ld(), 10);
}

TEST_F(TensorViews, ViewsKeepTheElements) {
  EXPECT_EQ(x_.view({12, 10}).rows(), 12);
  EXPECT_EQ(x_.view({120}).columns(), 120);
  const Tensor columns = x_.slice_columns(3, 5);
  EXPECT_EQ(columns.view({12, 5}).ld(), 10);
  EXPECT_THROW(static_cast<void>(columns.view({60})), std::exception);  // its rows lie apart
  EXPECT_THROW(static_cast<void>(x_.view({7})), std::exception);
}

TEST_F(TensorViews, OutOfRangeAndWrongTypeAreErrors) {
  EXPECT_THROW(static_cast<void>(x_.slice(2, 2)), std::exception);
  EXPECT_THROW(static_cast<void>(x_.slice(-1, 1)), std::exception);
  EXPECT_THROW(static_cast<void>(x_.slice_columns(8, 3)), std::exception);
  EXPECT_THROW(static_cast<void>(x_.data<float>()), std::exception);
  EXPECT_THROW(static_cast<void>(x_.slice_columns(0, 2).values<std::int32_t>()), std::exception);
  EXPECT_THROW(expect_shape(x_, {3, 4}, "x"), std::exception);
  EXPECT_EQ(x_.slice(3, 0).elems(), 0);
}

TEST(Shapes, CountTheirElements) {
  EXPECT_EQ(Shape{}.elems(), 1);
  EXPECT_EQ((Shape{2, 3, 4}.rows()), 6);
  EXPECT_EQ((Shape{5}.rows()), 1);
  EXPECT_EQ((Shape{2, 0, 4}.elems()), 0);
  EXPECT_EQ((Shape{2, 3}[-1]), 3);
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_EQ(to_string(Shape{2, 3}), "[2, 3]");
  Shape full{1, 2, 3, 4};
  EXPECT_THROW(full.push_back(5), std::exception);
}

}  // namespace
}  // namespace weft
