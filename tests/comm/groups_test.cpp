// split, planned groups, byte counts, the link model, and random programs over overlapping groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "comm/random_programs.hpp"

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

void run_program(int ranks, std::uint64_t seed, const std::optional<LinkModel>& link) {
  LocalOptions options;
  options.ranks = ranks;
  options.timeout = 60s;
  options.link = link;
  run_ranks(options, [&](Communicator& world, Lane& lane) { test::run_random_program(world, lane, seed); });
}

TEST(RandomPrograms, MixedOperationsInFlight) {
  std::uint64_t seed = 0;
  for (const int ranks : {2, 3, 4, 7, 12}) {
    for (int i = 0; i < 4; ++i) run_program(ranks, ++seed, {});
  }
}

TEST(RandomPrograms, OnALink) {
  for (const int ranks : {2, 5})
    run_program(ranks, 100u + static_cast<unsigned>(ranks), LinkModel{100us, 1e8});
}

}  // namespace
}  // namespace weft
