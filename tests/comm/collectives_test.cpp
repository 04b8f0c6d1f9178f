// Every operation × group size × element type against a plain loop, contiguous, strided and empty.
#include <gtest/gtest.h>

#include <limits>

#include "comm/ranks.hpp"
#include "comm/reduce.hpp"

namespace weft {
namespace {

using test::at;
using test::element;
using test::fill;
using test::make;
using test::run_ranks;
using test::same;

template <class T>
class CollectivesTest : public testing::Test {};
using ElementTypes = testing::Types<float, bf16, double, std::int64_t>;
TYPED_TEST_SUITE(CollectivesTest, ElementTypes);

struct Case {
  Shape shape;
  bool strided;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> list = {{{2, 3, 5}, false}, {{4, 7}, true},  {{3, 2, 2, 3}, true},
                                         {{5}, false},       {{0, 4}, false}, {{1, 2500}, false},
                                         {{2, 0}, true}};
  return list;
}
const int kSizes[] = {1, 2, 3, 4, 7};

// Calls body for every group size and case, in thread ranks.
void for_each_case(const std::function<void(Communicator&, Lane&, const Case&, std::uint64_t)>& body) {
  for (const int n : kSizes) {
    run_ranks(n, [&](Communicator& world, Lane& lane) {
      std::uint64_t id = 0;
      for (const Case& c : cases()) body(world, lane, c, id++);
    });
  }
}

TYPED_TEST(CollectivesTest, AllReduce) {
  using T = TypeParam;
  for_each_case([](Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
    const Tensor x = make(lane, dtype_of<T>(), c.shape, c.strided);
    fill<T>(x, [&](std::int64_t i) { return element<T>(id, world.rank(), i); });
    const Tensor y = world.all_reduce(lane, x).wait(lane);
    EXPECT_EQ(y.raw(), x.raw());
    for (std::int64_t i = 0; i < x.elems(); ++i) {
      ASSERT_TRUE(same(at<T>(y, i), test::sum_in_order<T>(id, test::all_ranks(world.size()), i))) << i;
    }
  });
}

TYPED_TEST(CollectivesTest, AllReduceMax) {
  using T = TypeParam;
  for_each_case([](Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
    const Tensor x = make(lane, dtype_of<T>(), c.shape, c.strided);
    fill<T>(x, [&](std::int64_t i) { return element<T>(id, world.rank(), i); });
    const Tensor y = world.all_reduce(lane, x, ReduceOp::kMax).wait(lane);
    for (std::int64_t i = 0; i < x.elems(); ++i) {
      double largest = -1e300;
      for (int r = 0; r < world.size(); ++r) largest = std::max(largest, test::plain(element<T>(id, r, i)));
      ASSERT_EQ(test::plain(at<T>(y, i)), largest) << i;
    }
  });
}

TYPED_TEST(CollectivesTest, AllGather) {
  using T = TypeParam;
  for_each_case([](Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
    const Tensor shard = make(lane, dtype_of<T>(), c.shape, c.strided);
    fill<T>(shard, [&](std::int64_t i) { return element<T>(id, world.rank(), i); });
    Shape whole = c.shape;
    whole.set(0, c.shape[0] * world.size());
    const Tensor full = make(lane, dtype_of<T>(), whole, c.strided);
    Async<Tensor> into = world.all_gather_into(lane, shard, full);
    Async<Tensor> allocated = world.all_gather(lane, shard);
    for (const Tensor& y : {allocated.wait(lane), into.wait(lane)}) {
      ASSERT_EQ(y.shape(), whole);
      for (std::int64_t i = 0; i < y.elems(); ++i) {
        const int r = static_cast<int>(i / shard.elems());
        ASSERT_TRUE(same(at<T>(y, i), element<T>(id, r, i % shard.elems()))) << i;
      }
    }
  });
}

TYPED_TEST(CollectivesTest, ReduceScatter) {
  using T = TypeParam;
  for_each_case([](Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
    Shape whole = c.shape;
    whole.set(0, c.shape[0] * world.size());
    const Tensor full = make(lane, dtype_of<T>(), whole, c.strided);
    fill<T>(full, [&](std::int64_t i) { return element<T>(id, world.rank(), i); });
    const Tensor shard = make(lane, dtype_of<T>(), c.shape, c.strided);
    Async<Tensor> into = world.reduce_scatter_into(lane, full, shard);
    Async<Tensor> allocated = world.reduce_scatter(lane, full);
    for (const Tensor& y : {into.wait(lane), allocated.wait(lane)}) {
      ASSERT_EQ(y.shape(), c.shape);
      for (std::int64_t i = 0; i < y.elems(); ++i) {
        const std::int64_t index = world.rank() * shard.elems() + i;
        ASSERT_TRUE(same(at<T>(y, i), test::sum_in_order<T>(id, test::all_ranks(world.size()), index))) << i;
      }
    }
    if (full.elems() == 0) return;
    // In place: the shard is this rank's rows of the input.
    const Tensor own = full.slice(world.rank() * c.shape[0], c.shape[0]);
    const Tensor y = world.reduce_scatter_into(lane, full, own).wait(lane);
    for (std::int64_t i = 0; i < y.elems(); ++i) {
      const std::int64_t index = world.rank() * shard.elems() + i;
      ASSERT_TRUE(same(at<T>(y, i), test::sum_in_order<T>(id, test::all_ranks(world.size()), index))) << i;
    }
    const Tensor again = world.all_gather_into(lane, own, full).wait(lane);
    for (std::int64_t i = 0; i < again.elems(); ++i) {
      ASSERT_TRUE(same(at<T>(again, i), test::sum_in_order<T>(id, test::all_ranks(world.size()), i))) << i;
    }
  });
}

TYPED_TEST(CollectivesTest, AllToAll) {
  using T = TypeParam;
  for_each_case([](Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
    const int n = world.size(), me = world.rank();
    const auto rows = [&](int from, int to) {
      return (from * 5 + to * 3 + static_cast<int>(id)) % 4;
    };  // 0 too
    std::vector<std::int64_t> send_rows, receive_rows;
    Shape send_shape = c.shape, receive_shape = c.shape;
    std::int64_t sent = 0, received = 0, row_elems = c.shape[0] == 0 ? 4 : c.shape.elems() / c.shape[0];
    for (int r = 0; r < n; ++r) {
      sent += send_rows.emplace_back(rows(me, r));
      received += receive_rows.emplace_back(rows(r, me));
    }
    send_shape.set(0, sent);
    receive_shape.set(0, received);
    // element(id * 100 + to, from, i): what `from` sends to `to`
    const Tensor send = make(lane, dtype_of<T>(), send_shape, c.strided);
    std::int64_t begin = 0;
    for (int to = 0; to < n; ++to) {
      fill<T>(send.slice(begin, send_rows[static_cast<std::size_t>(to)]),
              [&](std::int64_t i) { return element<T>(id * 100 + static_cast<std::uint64_t>(to), me, i); });
      begin += send_rows[static_cast<std::size_t>(to)];
    }
    const Tensor receive = make(lane, dtype_of<T>(), receive_shape, c.strided);
    const Tensor y = world.all_to_all_into(lane, send, send_rows, receive, receive_rows).wait(lane);
    begin = 0;
    for (int from = 0; from < n; ++from) {
      const std::int64_t count = receive_rows[static_cast<std::size_t>(from)] * row_elems;
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_TRUE(
            same(at<T>(y, begin + i), element<T>(id * 100 + static_cast<std::uint64_t>(me), from, i)));
      }
      begin += count;
    }
  });
}

TYPED_TEST(CollectivesTest, Broadcast) {
  using T = TypeParam;
  for_each_case([](Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
    for (int root = 0; root < world.size(); ++root) {
      const Tensor x = make(lane, dtype_of<T>(), c.shape, c.strided);
      fill<T>(x, [&](std::int64_t i) { return element<T>(id, world.rank(), i); });
      const Tensor y = world.broadcast(lane, x, root).wait(lane);
      for (std::int64_t i = 0; i < x.elems(); ++i)
        ASSERT_TRUE(same(at<T>(y, i), element<T>(id, root, i))) << i;
    }
  });
}

TYPED_TEST(CollectivesTest, RingsBothWays) {
  using T = TypeParam;
  for_each_case([](Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
    const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
    const auto tensor = [&](std::uint64_t what) {
      const Tensor x = make(lane, dtype_of<T>(), c.shape, c.strided);
      fill<T>(x, [&](std::int64_t i) { return element<T>(what, world.rank(), i); });
      return x;
    };
    // Two messages forwards and one back, in one call. In a group of one the third goes to itself as well.
    const std::vector<Communicator::Message> sends = {
        {next, tensor(id)}, {next, tensor(id + 50)}, {previous, tensor(id + 90)}};
    const std::vector<Communicator::Message> receives = {
        {previous, tensor(7)}, {previous, tensor(8)}, {next, tensor(9)}};
    const std::vector<Tensor> y = world.send_receive(lane, sends, receives).wait(lane);
    ASSERT_EQ(y.size(), 3u);
    for (std::int64_t i = 0; i < y[0].elems(); ++i) {
      if (n != 2) {  // with two ranks all three messages go one way, in order: the same here
        ASSERT_TRUE(same(at<T>(y[2], i), element<T>(id + 90, next, i)));
      }
      ASSERT_TRUE(same(at<T>(y[0], i), element<T>(id, previous, i)));
      ASSERT_TRUE(same(at<T>(y[1], i), element<T>(id + 50, previous, i)));
    }
  });
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
