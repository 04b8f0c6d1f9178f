// split, planned groups, byte counts, the link model, and random programs over overlapping groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "comm/ranks.hpp"

namespace weft {
namespace {

using namespace std::chrono_literals;
using test::at;
using test::element;
using test::fill;
using test::run_ranks;

TEST(Split, OrdersByKeyThenRank) {
  run_ranks(6, [](Communicator& world, Lane& lane) {
    const int me = world.rank();
    // Even ranks in reverse, odd ranks by equal keys, rank 5 nowhere.
    const auto group =
        world.split(me == 5 ? -1 : me % 2, me % 2 == 0 ? -me : 0, me % 2 == 0 ? "even" : "odd");
    if (me == 5) {
      EXPECT_EQ(group, nullptr);
      return;
    }
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->name(), me % 2 == 0 ? "even" : "odd");
    EXPECT_EQ(group->size(), me % 2 == 0 ? 3 : 2);
    EXPECT_EQ(group->rank(), me % 2 == 0 ? 2 - me / 2 : me / 2);
    const Tensor x = lane.alloc(DType::kI64, {1}, "x");
    x.data<std::int64_t>()[0] = me;
    const Tensor all = group->all_gather(lane, x).wait(lane);
    const std::vector<std::int64_t> members(all.values<std::int64_t>().begin(),
                                            all.values<std::int64_t>().end());
    EXPECT_EQ(members,
              me % 2 == 0 ? (std::vector<std::int64_t>{4, 2, 0}) : (std::vector<std::int64_t>{1, 3}));
    // A group splits again.
    const auto alone = group->split(group->rank(), 0, "alone");
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(alone->name(), "alone");
    EXPECT_EQ(alone->split(-1, 0, "none"), nullptr);
    EXPECT_EQ(alone->split(3, 0, "one")->size(), 1);
  });
}

// One call of each operation with known sizes.
void call_everything(Communicator& c, Lane& lane) {
  const int n = c.size(), me = c.rank();
  const auto tensor = [&](const Shape& shape) {
    const Tensor x = lane.alloc(DType::kF32, shape, "x");
    if (!lane.meta()) std::fill_n(x.raw(), x.bytes(), std::byte{0});
    return x;
  };
  (void)c.all_reduce(lane, tensor({7, 3})).wait(lane);
  (void)c.all_gather(lane, tensor({2, 5})).wait(lane);
  (void)c.reduce_scatter(lane, tensor({n * 3, 2})).wait(lane);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(n), 2);
  (void)c.all_to_all_into(lane, tensor({2 * n, 4}), rows, tensor({2 * n, 4}), rows).wait(lane);
  (void)c.broadcast(lane, tensor({11}), 1).wait(lane);
  const std::vector<Communicator::Message> sends = {{(me + 1) % n, tensor({6})}, {me, tensor({9})}};
  (void)c.send_receive(lane, sends, {{(me + n - 1) % n, tensor({6})}, {me, tensor({9})}}).wait(lane);
  c.barrier(lane);
}

TEST(Bytes, PlannedEqualsLocalEqualsFormula) {
  for (const int n : {2, 3, 5}) {
    run_ranks(n, [n](Communicator& world, Lane& lane) {
      call_everything(world, lane);
      const std::uint64_t others = static_cast<std::uint64_t>(n - 1);
      const std::uint64_t expected =
          2 * others * 84 / static_cast<std::uint64_t>(n)  // all_reduce of 84 bytes
          + others * 40                                    // all_gather
          + others * 24                                    // reduce_scatter
          + others * 32                                    // all_to_all
          + (world.rank() == 1 ? 44u : 0u)                 // broadcast
          + 24;                                            // one message to another rank
      EXPECT_EQ(world.bytes_sent(), expected);

      const std::unique_ptr<Arena> arena = Arena::meta();
      Workers workers(1);
      Lane meta{*arena, workers, {}};
      const auto planned = planned_communicator("world", world.rank(), n);
      call_everything(*planned, meta);
      EXPECT_EQ(planned->bytes_sent(), expected);
      // The plan sees every allocation and release that the run made.
      EXPECT_EQ(arena->high_water(), lane.arena.high_water());
      EXPECT_EQ(arena->allocations(), lane.arena.allocations());
      EXPECT_EQ(arena->in_use(), 0u);
    });
  }
}

TEST(Planned, InputsLiveUntilTheWait) {
  const auto peak = [](Communicator& c, Lane& lane) {
    Async<Tensor> y = c.all_gather(lane, lane.alloc(DType::kF32, {256}, "shard"));
    const Tensor other = lane.alloc(DType::kF32, {256}, "other");  // must not take the shard's place
    (void)y.wait(lane);
    return lane.arena.high_water();
  };
  const std::unique_ptr<Arena> arena = Arena::meta();
  Workers workers(1);
  Lane meta{*arena, workers, {}};
  const std::size_t planned = peak(*planned_communicator("tp", 0, 2), meta);
  EXPECT_EQ(planned, 4u * 1024u);
  run_ranks(2, [&](Communicator& world, Lane& lane) { EXPECT_EQ(peak(world, lane), planned); });
}

TEST(Planned, FaultsAreErrors) {
  const std::unique_ptr<Arena> arena = Arena::meta();
  const std::unique_ptr<Arena> host = Arena::host(4096);
  Workers workers(1);
  Lane meta{*arena, workers, {}};
  const auto c = planned_communicator("dp", 1, 4);
  EXPECT_THROW((void)c->split(0, 0, "x"), Error);
  EXPECT_THROW((void)c->all_reduce(meta, host->alloc(DType::kF32, {2}, "x")), Error);
  const Tensor x = meta.alloc(DType::kF32, {2}, "x");
  { const Async<Tensor> unwaited = c->all_reduce(meta, x); }
  EXPECT_THROW((void)c->all_reduce(meta, x), Error);
  EXPECT_EQ(planned_communicator("tp", 0, 1)->size(), 1);
}

// Lower bounds hold always; how soon things are done depends on the machine's load, so the best of a few
// tries counts.
TEST(Link, DoneAtLatencyPlusBytesOverBandwidth) {
  using Clock = std::chrono::steady_clock;
  LocalOptions options;
  options.ranks = 2;
  options.link = LinkModel{20ms, 1e6};  // 1 byte a microsecond
  Clock::duration best_start = 1h, best_end = 1h;
  for (int attempt = 0; attempt < 10 && (best_start > 10ms || best_end > 80ms); ++attempt) {
    run_ranks(options, [&](Communicator& world, Lane& lane) {
      const Tensor shard = lane.alloc(DType::kU8, {30'000}, "shard");
      fill<std::uint8_t>(shard, [&](std::int64_t i) { return static_cast<std::uint8_t>(i + world.rank()); });
      world.barrier(lane);
      const auto begin = Clock::now();
      Async<Tensor> first = world.all_gather(lane, shard);
      Async<Tensor> second = world.all_gather(lane, shard);  // rides beside the first: the model has no queue
      const Clock::duration started = Clock::now() - begin;
      std::this_thread::sleep_for(30ms);  // compute, which hides a part
      const Tensor y = first.wait(lane);
      EXPECT_GE(Clock::now() - begin, 50ms);  // 20 ms + 30,000 bytes
      (void)second.wait(lane);
      const Clock::duration ended = Clock::now() - begin;
      EXPECT_EQ(y.data<std::uint8_t>()[30'000], 1);
      world.barrier(lane);
      if (world.rank() == 0) {
        best_start = std::min(best_start, started);
        best_end = std::min(best_end, ended);
      }
    });
  }
  EXPECT_LT(best_start, 10ms);
  EXPECT_LT(best_end, 80ms);  // 100 ms one after the other
}

TEST(Link, TheLastToJoinSetsTheTime) {
  using Clock = std::chrono::steady_clock;
  LocalOptions options;
  options.ranks = 2;
  options.link = LinkModel{20ms, 1e6};
  run_ranks(options, [](Communicator& world, Lane& lane) {
    const Tensor x = lane.alloc(DType::kU8, {30'000}, "x"), got = lane.alloc(DType::kU8, {30'000}, "got");
    fill<std::uint8_t>(x, [&](std::int64_t i) { return static_cast<std::uint8_t>(i + world.rank()); });
    world.barrier(lane);
    if (world.rank() == 1) std::this_thread::sleep_for(100ms);
    const auto begin = Clock::now();
    const int peer = 1 - world.rank();
    Async<Tensor> all = world.all_gather(lane, x);
    (void)world.send_receive(lane, {{peer, x}}, {{peer, got}}).wait(lane);
    EXPECT_GE(Clock::now() - begin, world.rank() == 0 ? 120ms : 50ms);
    (void)all.wait(lane);
    EXPECT_EQ(got.data<std::uint8_t>()[5], 5 + peer);
  });
}

// ---- Random programs: every rank runs the same list of operations over overlapping groups, keeps several in
// flight, and waits for them in an order of its own.

struct Program {
  int ranks;
  std::uint64_t seed;
};

struct GroupOf {
  std::unique_ptr<Communicator> communicator;
  std::vector<int> members;  // world ranks, in group order
};

// Groups of one world by a rule every rank can work out.
std::vector<GroupOf> make_groups(Communicator& world) {
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
    const Tensor x = test::make(lane, dtype_of<T>(), shape, strided);
    fill<T>(x, [&](std::int64_t i) { return element<T>(id, self, i); });
    return x;
  };
  const auto shared = [](Async<Tensor> y) { return std::make_shared<Async<Tensor>>(std::move(y)); };
  const auto check = [](const Tensor& y, const std::function<T(std::int64_t)>& expected) {
    for (std::int64_t i = 0; i < y.elems(); ++i) {
      if (!test::same(at<T>(y, i), expected(i))) fail("element {} of {} is wrong", i, to_string(y.shape()));
    }
  };
  switch (op) {
    case 0: {
      const auto y = shared(c.all_reduce(lane, input({rows, 3})));
      return {[=, &lane] {
        check(y->wait(lane), [&](std::int64_t i) { return test::sum_in_order<T>(id, members, i); });
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
        check(y->wait(lane),
              [&](std::int64_t i) { return test::sum_in_order<T>(id, members, me * rows * 3 + i); });
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
      const auto y =
          shared(c.all_to_all_into(lane, input({rows * n, 3}), counts,
                                   test::make(lane, dtype_of<T>(), {rows * n, 3}, strided), counts));
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
          lane, {{to, input({rows, 3})}}, {{from, test::make(lane, dtype_of<T>(), {rows, 3}, strided)}}));
      return {[=, &lane] {
        check(y->wait(lane).at(0),
              [&](std::int64_t i) { return element<T>(id, members[static_cast<std::size_t>(from)], i); });
      }};
    }
  }
}

void run_program(const Program& program, const std::optional<LinkModel>& link) {
  LocalOptions options;
  options.ranks = program.ranks;
  options.timeout = 60s;
  options.link = link;
  run_ranks(options, [&](Communicator& world, Lane& lane) {
    std::vector<GroupOf> groups = make_groups(world);
    std::mt19937 same(static_cast<unsigned>(program.seed));  // alike on all ranks: what to do
    std::mt19937 own(static_cast<unsigned>(program.seed * 31 + static_cast<unsigned>(world.rank())));  // when
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
  });
}

TEST(RandomPrograms, MixedOperationsInFlight) {
  std::uint64_t seed = 0;
  for (const int ranks : {2, 3, 4, 7, 12}) {
    for (int i = 0; i < 4; ++i) run_program({ranks, ++seed}, {});
  }
}

TEST(RandomPrograms, OnALink) {
  for (const int ranks : {2, 5})
    run_program({ranks, 100u + static_cast<unsigned>(ranks)}, LinkModel{100us, 1e8});
}

}  // namespace
}  // namespace weft
