// Random programs for one rank of a world on any backend: every rank runs the same list of operations over
// overlapping groups, keeps several in flight, and waits for them in an order of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "comm/ranks.hpp"

namespace weft::test {

struct GroupOf {
  std::unique_ptr<Communicator> communicator;
  std::vector<int> members;  // world ranks, in group order
};

// Groups of one world by a rule every rank can work out.
inline std::vector<GroupOf> make_groups(Communicator& world) {
  const int n = world.size();
  const auto add = [&](std::vector<GroupOf>& groups, const std::string& name, auto color, auto key) {
    GroupOf g{world.split(color(world.rank()), key(world.rank()), name), {}};
    for (int r = 0; r < n; ++r) {
      if (color(r) == color(world.rank())) g.members.push_back(r);
    }
    std::stable_sort(g.members.begin(), g.members.end(), [&](int a, int b) { return key(a) < key(b); });
    groups.push_back(std::move(g));
  };
  std::vector<GroupOf> groups;
  add(
      groups, "all", [](int) { return 0; }, [](int r) { return r; });
  add(
      groups, "reverse", [](int) { return 0; }, [](int r) { return -r; });
  add(
      groups, "parity", [](int r) { return r % 2; }, [](int) { return 0; });
  add(
      groups, "halves", [n](int r) { return r < (n + 1) / 2 ? 0 : 1; }, [](int r) { return -r; });
  add(
      groups, "thirds", [](int r) { return r / 3; }, [](int) { return 0; });
  return groups;
}

struct InFlight {
  std::function<void()> finish;  // waits and checks
};

template <class T>
InFlight start(GroupOf& group, Lane& lane, int op, std::int64_t rows, std::uint64_t id, bool strided) {
  Communicator& c = *group.communicator;
  const std::vector<int>& members = group.members;
  const int n = c.size(), me = c.rank(), self = members[static_cast<std::size_t>(me)];
  const auto input = [&](const Shape& shape) {
    Tensor x = make(lane, dtype_of<T>(), shape, strided);
    fill<T>(x, [&](std::int64_t i) { return element<T>(id, self, i); });
    return x;
  };
  const auto shared = [](Async<Tensor> y) { return std::make_shared<Async<Tensor>>(std::move(y)); };
  const auto check = [](const Tensor& y, const std::function<T(std::int64_t)>& expected) {
    for (std::int64_t i = 0; i < y.elems(); ++i) {
      if (!same(at<T>(y, i), expected(i))) fail("element {} of {} is wrong", i, to_string(y.shape()));
    }
  };
  switch (op) {
    case 0: {
      const auto y = shared(c.all_reduce(lane, input({rows, 3})));
      return {[=, &lane] {
        check(y->wait(lane), [&](std::int64_t i) { return sum_in_order<T>(id, members, i); });
      }};
    }
    case 1: {
      const auto y = shared(c.all_gather(lane, input({rows, 3})));
      return {[=, &lane] {
        check(y->wait(lane), [&](std::int64_t i) {
          return element<T>(id, members[static_cast<std::size_t>(i / (rows * 3))], i % (rows * 3));
        });
      }};
    }
    case 2: {
      const auto y = shared(c.reduce_scatter(lane, input({rows * n, 3})));
      return {[=, &lane] {
        check(y->wait(lane), [&](std::int64_t i) { return sum_in_order<T>(id, members, me * rows * 3 + i); });
      }};
    }
    case 3: {
      const int root = static_cast<int>(id % static_cast<std::uint64_t>(n));
      const auto y = shared(c.broadcast(lane, input({rows, 3}), root));
      return {[=, &lane] {
        check(y->wait(lane),
              [&](std::int64_t i) { return element<T>(id, members[static_cast<std::size_t>(root)], i); });
      }};
    }
    case 4: {
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(n), rows);
      const auto y = shared(c.all_to_all_into(lane, input({rows * n, 3}), counts,
                                              make(lane, dtype_of<T>(), {rows * n, 3}, strided), counts));
      return {[=, &lane] {
        check(y->wait(lane), [&](std::int64_t i) {
          const std::int64_t from = i / (rows * 3);
          return element<T>(id, members[static_cast<std::size_t>(from)], me * rows * 3 + i % (rows * 3));
        });
      }};
    }
    default: {  // a ring message, in a direction of its own
      const int step = op == 5 ? 1 : n - 1;
      const int to = (me + step) % n, from = (me + n - step) % n;
      const auto y = std::make_shared<Async<std::vector<Tensor>>>(c.send_receive(
          lane, {{to, input({rows, 3})}}, {{from, make(lane, dtype_of<T>(), {rows, 3}, strided)}}));
      return {[=, &lane] {
        check(y->wait(lane).at(0),
              [&](std::int64_t i) { return element<T>(id, members[static_cast<std::size_t>(from)], i); });
      }};
    }
  }
}

inline void run_random_program(Communicator& world, Lane& lane, std::uint64_t seed) {
  std::vector<GroupOf> groups = make_groups(world);
  std::mt19937 same(static_cast<unsigned>(seed));  // alike on all ranks: what to do
  std::mt19937 own(static_cast<unsigned>(seed * 31 + static_cast<unsigned>(world.rank())));  // when
  std::vector<InFlight> flying;
  const auto finish_one = [&] {
    const std::size_t i = own() % flying.size();
    flying[i].finish();
    flying.erase(flying.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (std::uint64_t id = 0; id < 60; ++id) {
    GroupOf& group = groups[same() % groups.size()];
    const int op = static_cast<int>(same() % 7);
    const std::int64_t rows = same() % 9;
    const bool strided = same() % 2 == 0;
    switch (same() % 4) {
      case 0:
        flying.push_back(start<float>(group, lane, op, rows, id, strided));
        break;
      case 1:
        flying.push_back(start<bf16>(group, lane, op, rows, id, strided));
        break;
      case 2:
        flying.push_back(start<double>(group, lane, op, rows, id, strided));
        break;
      default:
        flying.push_back(start<std::int64_t>(group, lane, op, rows, id, strided));
        break;
    }
    if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    while (flying.size() > own() % 6) finish_one();
  }
  while (!flying.empty()) finish_one();
  EXPECT_EQ(lane.arena.in_use(), 0u);
}

}  // namespace weft::test
