// Every operation × group size × element type against a plain loop, contiguous, strided and empty.
#include <gtest/gtest.h>

#include <limits>

#include "comm/collective_cases.hpp"
#include "comm/reduce.hpp"

namespace weft {
namespace {

using test::Case;
using test::run_ranks;

template <class T>
class CollectivesTest : public testing::Test {};
TYPED_TEST_SUITE(CollectivesTest, test::ElementTypes);

const int kSizes[] = {1, 2, 3, 4, 7};

// Calls body for every group size and case, in thread ranks.
void for_each_case(const std::function<void(Communicator&, Lane&, const Case&, std::uint64_t)>& body) {
  for (const int n : kSizes) {
    run_ranks(n, [&](Communicator& world, Lane& lane) {
      std::uint64_t id = 0;
      for (const Case& c : test::cases()) body(world, lane, c, id++);
    });
  }
}

TYPED_TEST(CollectivesTest, AllReduce) {
  for_each_case(test::check_all_reduce<TypeParam>);
}
TYPED_TEST(CollectivesTest, AllReduceMax) {
  for_each_case(test::check_all_reduce_max<TypeParam>);
}
TYPED_TEST(CollectivesTest, AllGather) {
  for_each_case(test::check_all_gather<TypeParam>);
}
TYPED_TEST(CollectivesTest, ReduceScatter) {
  for_each_case(test::check_reduce_scatter<TypeParam>);
}
TYPED_TEST(CollectivesTest, AllToAll) {
  for_each_case(test::check_all_to_all<TypeParam>);
}
TYPED_TEST(CollectivesTest, Broadcast) {
  for_each_case(test::check_broadcast<TypeParam>);
}
TYPED_TEST(CollectivesTest, RingsBothWays) {
  for_each_case(test::check_rings_both_ways<TypeParam>);
}

TEST(Collectives, RankZeroTensor) {
  run_ranks(3, [](Communicator& world, Lane& lane) {
    const Tensor x = lane.alloc(DType::kF32, {}, "scalar");
    x.data<float>()[0] = static_cast<float>(world.rank() + 1);
    EXPECT_EQ(world.all_reduce(lane, x).wait(lane).data<float>()[0], 6.0f);
    EXPECT_EQ(world.broadcast(lane, x, 2).wait(lane).data<float>()[0], 6.0f);
  });
}

TEST(Collectives, GroupOfOneCopiesNothing) {
  run_ranks(1, [](Communicator& world, Lane& lane) {
    const Tensor x = lane.alloc(DType::kF32, {4}, "x");
    EXPECT_EQ(world.all_gather(lane, x).wait(lane).raw(), x.raw());
    EXPECT_EQ(world.reduce_scatter(lane, x).wait(lane).raw(), x.raw());
    EXPECT_EQ(world.all_gather_into(lane, x, x).wait(lane).raw(), x.raw());
    EXPECT_EQ(world.bytes_sent(), 0u);
  });
}

TEST(Collectives, WrongArgumentsAreRefused) {
  const std::string error = test::error_of([] {
    run_ranks(2, [](Communicator& world, Lane& lane) {
      const Tensor shard = lane.alloc(DType::kF32, {2, 3}, "shard"),
                   full = lane.alloc(DType::kF32, {5, 3}, "full");
      (void)world.all_gather_into(lane, shard, full).wait(lane);
    });
  });
  EXPECT_NE(error.find("between the shard [2, 3] and the full [5, 3]"), std::string::npos) << error;
}

TEST(Reduce, SixteenBitSumsRoundOnce) {
  // 256 + 1 + 1 in bf16 steps would stay 256; summed in fp32 it is 258.
  std::vector<bf16> a{bf16(256.0f)}, b{bf16(1.0f)}, c{bf16(1.0f)};
  const auto view = [](std::vector<bf16>& v) { return View(Tensor::borrow(v.data(), DType::kBF16, {1})); };
  reduce_in_order(DType::kBF16, ReduceOp::kSum, {view(a), view(b), view(c)}, {view(a)});
  EXPECT_EQ(static_cast<float>(a[0]), 258.0f);
}

TEST(Reduce, MaximumKeepsNanWhereverItComesFrom) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int place = 0; place < 3; ++place) {
    std::vector<float> x[3] = {{1}, {2}, {3}}, y{0};
    x[place][0] = nan;
    std::vector<View> in;
    for (auto& v : x) in.emplace_back(Tensor::borrow(v.data(), DType::kF32, {1}));
    reduce_in_order(DType::kF32, ReduceOp::kMax, in, {View(Tensor::borrow(y.data(), DType::kF32, {1}))});
    EXPECT_TRUE(std::isnan(y[0])) << place;
  }
}

TEST(Reduce, IntegersWrapAndKeepTheirSign) {
  std::vector<std::int8_t> a{100, -5}, b{100, -7};
  const auto view = [](std::vector<std::int8_t>& v) {
    return View(Tensor::borrow(v.data(), DType::kI8, {2}));
  };
  reduce_in_order(DType::kI8, ReduceOp::kMax, {view(a), view(b)}, {view(b)});
  EXPECT_EQ(b, (std::vector<std::int8_t>{100, -5}));
  reduce_in_order(DType::kI8, ReduceOp::kSum, {view(a), view(b)}, {view(a)});
  EXPECT_EQ(a, (std::vector<std::int8_t>{-56, -10}));
}

}  // namespace
}  // namespace weft
