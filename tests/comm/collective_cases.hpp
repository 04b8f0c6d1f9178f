// Every operation against a plain loop, for one rank of a world on any backend: each function is called by
// all ranks with the same case and id.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/ranks.hpp"

namespace weft::test {

struct Case {
  Shape shape;
  bool strided;
};
inline const std::vector<Case>& cases() {
  static const std::vector<Case> list = {{{2, 3, 5}, false}, {{4, 7}, true},  {{3, 2, 2, 3}, true},
                                         {{5}, false},       {{0, 4}, false}, {{1, 2500}, false},
                                         {{2, 0}, true},     {{37, 61}, true}};
  return list;
}

using ElementTypes = testing::Types<float, bf16, f16, double, std::int64_t, std::int32_t>;

template <class T>
void check_all_reduce(Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
  const Tensor x = make(lane, dtype_of<T>(), c.shape, c.strided);
  fill<T>(x, [&](std::int64_t i) { return element<T>(id, world.rank(), i); });
  const Tensor y = world.all_reduce(lane, x).wait(lane);
  EXPECT_EQ(y.raw(), x.raw());
  for (std::int64_t i = 0; i < x.elems(); ++i) {
    ASSERT_TRUE(same(at<T>(y, i), sum_in_order<T>(id, all_ranks(world.size()), i))) << i;
  }
}

template <class T>
void check_all_reduce_max(Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
  const Tensor x = make(lane, dtype_of<T>(), c.shape, c.strided);
  fill<T>(x, [&](std::int64_t i) { return element<T>(id, world.rank(), i); });
  const Tensor y = world.all_reduce(lane, x, ReduceOp::kMax).wait(lane);
  for (std::int64_t i = 0; i < x.elems(); ++i) {
    double largest = -1e300;
    for (int r = 0; r < world.size(); ++r) largest = std::max(largest, plain(element<T>(id, r, i)));
    ASSERT_EQ(plain(at<T>(y, i)), largest) << i;
  }
}

template <class T>
void check_all_gather(Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
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
}

template <class T>
void check_reduce_scatter(Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
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
      ASSERT_TRUE(same(at<T>(y, i), sum_in_order<T>(id, all_ranks(world.size()), index))) << i;
    }
  }
  if (full.elems() == 0) return;
  // In place: the shard is this rank's rows of the input.
  const Tensor own = full.slice(world.rank() * c.shape[0], c.shape[0]);
  const Tensor y = world.reduce_scatter_into(lane, full, own).wait(lane);
  for (std::int64_t i = 0; i < y.elems(); ++i) {
    const std::int64_t index = world.rank() * shard.elems() + i;
    ASSERT_TRUE(same(at<T>(y, i), sum_in_order<T>(id, all_ranks(world.size()), index))) << i;
  }
  const Tensor again = world.all_gather_into(lane, own, full).wait(lane);
  for (std::int64_t i = 0; i < again.elems(); ++i) {
    ASSERT_TRUE(same(at<T>(again, i), sum_in_order<T>(id, all_ranks(world.size()), i))) << i;
  }
}

template <class T>
void check_all_to_all(Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
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
      ASSERT_TRUE(same(at<T>(y, begin + i), element<T>(id * 100 + static_cast<std::uint64_t>(me), from, i)));
    }
    begin += count;
  }
}

template <class T>
void check_broadcast(Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
  for (int root = 0; root < world.size(); ++root) {
    const Tensor x = make(lane, dtype_of<T>(), c.shape, c.strided);
    fill<T>(x, [&](std::int64_t i) { return element<T>(id, world.rank(), i); });
    const Tensor y = world.broadcast(lane, x, root).wait(lane);
    for (std::int64_t i = 0; i < x.elems(); ++i) ASSERT_TRUE(same(at<T>(y, i), element<T>(id, root, i))) << i;
  }
}

template <class T>
void check_rings_both_ways(Communicator& world, Lane& lane, const Case& c, std::uint64_t id) {
  const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
  const auto tensor = [&](std::uint64_t what) {
    Tensor x = make(lane, dtype_of<T>(), c.shape, c.strided);
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
}

}  // namespace weft::test
