// A link whose operations wait for each other. Lower bounds of time only: they hold on a busy machine too.
#include <gtest/gtest.h>

#include <chrono>

#include "comm/local/launcher.hpp"
#include "support/rank.hpp"

namespace weft {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr LinkModel kLink{.latency = 20ms, .bytes_per_second = 1e6, .queued = true};

TEST(QueuedLink, CollectivesOfAGroupFollowEachOther) {
  run_local_ranks({.ranks = 2, .link = kLink}, [](Communicator& world) {
    testing::TestRank rank;
    Lane& lane = rank.lane();
    const Tensor shard = lane.alloc(DType::kU8, {30'000}, "shard");
    const auto begin = Clock::now();
    Async<Tensor> first = world.all_gather(lane, shard);
    Async<Tensor> second = world.all_gather(lane, shard);
    (void)first.wait(lane);
    EXPECT_GE(Clock::now() - begin, 50ms);  // 20 ms + 30,000 bytes
    (void)second.wait(lane);
    EXPECT_GE(Clock::now() - begin, 100ms);
  });
}

TEST(QueuedLink, MessagesFromOneRankToAnotherFollowEachOther) {
  run_local_ranks({.ranks = 2, .link = kLink}, [](Communicator& world) {
    testing::TestRank rank;
    Lane& lane = rank.lane();
    const Tensor x = lane.alloc(DType::kU8, {60'000}, "message");
    const Communicator::Message a{1 - world.rank(), x.slice(0, 30'000)}, b{a.peer, x.slice(30'000, 30'000)};
    const auto begin = Clock::now();
    if (world.rank() == 0) {
      (void)world.send_receive(lane, {a, b}, {}).wait(lane);
    } else {
      (void)world.send_receive(lane, {}, {a, b}).wait(lane);
    }
    EXPECT_GE(Clock::now() - begin, 100ms);
  });
}

}  // namespace
}  // namespace weft
