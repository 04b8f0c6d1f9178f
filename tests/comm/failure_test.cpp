// What goes wrong must end the run soon, with the first cause, and without touching memory that is gone.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "comm/ranks.hpp"

namespace weft {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using test::run_ranks;

LocalOptions options(int ranks, std::chrono::milliseconds timeout) {
  LocalOptions o;
  o.ranks = ranks;
  o.timeout = timeout;
  return o;
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

Tensor zeros(Lane& lane, DType dtype, const Shape& shape) {
  const Tensor x = lane.alloc(dtype, shape, "zeros");
  std::fill_n(x.raw(), x.bytes(), std::byte{0});
  return x;
}

TEST(Failure, DifferentShapesAreNamed) {
  const std::string error = error_of([] {
    run_ranks(4, [](Communicator& world, Lane& lane) {
      const auto group = world.split(0, 0, "dp");
      (void)group->all_reduce(lane, zeros(lane, DType::kF32, {3})).wait(lane);
      const Shape shape = {world.rank() == 2 ? 5 : 4};
      (void)group->all_reduce(lane, zeros(lane, DType::kF32, shape)).wait(lane);
    });
  });
  expect_parts(error, {"rank 2: group 'dp' (ranks 0 1 2 3), operation #1",
                       "rank 2 called all_reduce(F32 [5], sum)", "rank 0 called all_reduce(F32 [4], sum)"});
}

TEST(Failure, DifferentOperationsAreNamed) {
  const auto run = [](const std::function<void(Communicator&, Lane&)>& odd) {
    return error_of([&] {
      run_ranks(3, [&](Communicator& world, Lane& lane) {
        if (world.rank() == 1) return odd(world, lane);
        (void)world.all_reduce(lane, zeros(lane, DType::kF32, {4})).wait(lane);
      });
    });
  };
  expect_parts(run([](Communicator& world, Lane& lane) { world.barrier(lane); }),
               {"rank 1 called barrier()"});
  expect_parts(run([](Communicator& world, Lane& lane) {
                 (void)world.all_reduce(lane, zeros(lane, DType::kF32, {4}), ReduceOp::kMax).wait(lane);
               }),
               {"rank 1 called all_reduce(F32 [4], max)", "rank 0 called all_reduce(F32 [4], sum)"});
  expect_parts(run([](Communicator& world, Lane& lane) {
                 (void)world.all_reduce(lane, zeros(lane, DType::kF64, {4})).wait(lane);
               }),
               {"rank 1 called all_reduce(F64 [4], sum)"});
  expect_parts(run([](Communicator& world, Lane& lane) {
                 (void)world.all_gather(lane, zeros(lane, DType::kF32, {4})).wait(lane);
               }),
               {"rank 1 called all_gather(shard F32 [4])"});
  expect_parts(run([](Communicator& world, Lane&) { (void)world.split(0, 0, "x"); }),
               {"rank 1 called split(color 0"});
}

TEST(Failure, OtherArgumentsThatDiffer) {
  expect_parts(error_of([] {
                 run_ranks(3, [](Communicator& world, Lane& lane) {
                   const int root = world.rank() == 2 ? 1 : 0;
                   (void)world.broadcast(lane, zeros(lane, DType::kI64, {2}), root).wait(lane);
                 });
               }),
               {"rank 2 called broadcast(I64 [2], root 1)", "rank 0 called broadcast(I64 [2], root 0)"});
  expect_parts(error_of([] {
                 run_ranks(2, [](Communicator& world, Lane& lane) {
                   // Rank 0 sends two rows to rank 1, which expects one.
                   const std::vector<std::int64_t> sends = {1, world.rank() == 0 ? 2 : 1}, receives = {1, 1};
                   (void)world
                       .all_to_all_into(lane, zeros(lane, DType::kF32, {sends[0] + sends[1], 3}), sends,
                                        zeros(lane, DType::kF32, {2, 3}), receives)
                       .wait(lane);
                 });
               }),
               {"all_to_all(rows of F32 [1, 3], sends [1, 2], receives [1, 1])"});
  expect_parts(error_of([] {
                 run_ranks(2, [](Communicator& world, Lane& lane) {
                   const Tensor x = zeros(lane, DType::kF32, {world.rank() + 2});
                   std::vector<Communicator::Message> send, receive;
                   (world.rank() == 0 ? send : receive).push_back({1 - world.rank(), x});
                   (void)world.send_receive(lane, send, receive).wait(lane);
                 });
               }),
               {"rank 1 called receive(F32 [3])", "rank 0 called send(F32 [2])"});
  expect_parts(error_of([] {
                 run_ranks(2, [](Communicator& world, Lane&) {
                   (void)world.split(0, 0, world.rank() == 0 ? "tp" : "dp");
                 });
               }),
               {"split(color 0, 'dp')", "split(color 0, 'tp')"});
}

TEST(Failure, TimeoutNamesTheAbsentRank) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string error = error_of([&] {
    run_ranks(options(4, 300ms), [&](Communicator& world, Lane& lane) {
      const auto group = world.split(0, -world.rank(), "dp");
      const auto pair = world.split(world.rank() / 2, 0, "tp");
      if (world.rank() == 2) {
        std::this_thread::sleep_for(700ms);
        return;
      }
      if (world.rank() == 3) {  // held up itself: its last call leads to rank 2
        (void)pair->all_reduce(lane, zeros(lane, DType::kF32, {1})).wait(lane);
      }
      (void)group->all_reduce(lane, zeros(lane, DType::kBF16, {4})).wait(lane);
    });
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
  expect_parts(error, {"timed out after 0.3 s", "#0", "rank 2"});
  const bool on_dp = error.find("group 'dp' (ranks 3 2 1 0): all_reduce(BF16 [4], sum)") != std::string::npos;
  const bool on_tp = error.find("group 'tp' (ranks 2 3): all_reduce(F32 [1], sum)") != std::string::npos;
  EXPECT_TRUE(on_dp || on_tp) << error;
  if (on_dp) expect_parts(error, {"ranks 3 2", "rank 3: all_reduce #0 in group 'tp', now waiting"});
  if (on_tp) expect_parts(error, {"rank 2 has not joined it"});
}

TEST(Failure, MessageTimeoutNamesBothEnds) {
  const std::string error = error_of([] {
    run_ranks(options(3, 200ms), [](Communicator& world, Lane& lane) {
      if (world.rank() == 1) {
        const Tensor x = zeros(lane, DType::kF32, {8});
        (void)world.send_receive(lane, {}, {{2, x}}).wait(lane);
      }
      std::this_thread::sleep_for(400ms);
    });
  });
  expect_parts(error,
               {"rank 1: group 'world'", "receive(F32 [8]) #0 from rank 2 to rank 1 timed out after 0.2 s",
                "rank 2 has not joined it"});
}

TEST(Failure, RankThatHasReturnedIsNotWaitedFor) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string error = error_of([] {
    run_ranks(options(3, 60s), [](Communicator& world, Lane& lane) {
      if (world.rank() == 1) return;
      world.barrier(lane);
    });
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  // Rank 2 is named beside it when it comes later than rank 1 leaves.
  expect_parts(error, {"can never complete", "a rank has returned without joining it; rank"});
  EXPECT_NE(error.find("1", error.find("joining it; rank")), std::string::npos) << error;
}

TEST(Failure, ThrowingRankEndsEverybodySoon) {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> aborted{0};
  const std::string error = error_of([&] {
    run_ranks(options(6, 60s), [&](Communicator& world, Lane& lane) {
      const auto pair = world.split(world.rank() / 2, 0, "pair");
      if (world.rank() == 3) {
        std::this_thread::sleep_for(50ms);
        throw std::runtime_error("no more paper");
      }
      try {
        if (world.rank() % 3 == 0) world.barrier(lane);
        if (world.rank() % 3 == 1)
          (void)world.send_receive(lane, {{3, zeros(lane, DType::kF32, {4})}}, {}).wait(lane);
        for (;;) (void)pair->all_reduce(lane, zeros(lane, DType::kF32, {4})).wait(lane);
      } catch (const Aborted&) {
        ++aborted;
        throw;
      }
    });
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  EXPECT_EQ(error, "rank 3: no more paper");
  EXPECT_EQ(aborted, 5);
}

TEST(Failure, ConfigErrorKeepsItsType) {
  const auto body = [](Communicator& world, Lane& lane) {
    if (world.rank() == 1) throw ConfigError(std::vector<std::string>{"--a is wrong", "--b too"});
    world.barrier(lane);
  };
  try {
    run_ranks(3, body);
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.problems, (std::vector<std::string>{"rank 1: --a is wrong", "--b too"}));
  }
}

TEST(Failure, UnwaitedResultIsReported) {
  const std::string error = error_of([] {
    run_ranks(options(3, 60s), [](Communicator& world, Lane& lane) {
      const auto group = world.split(0, 0, "cp");
      {
        Async<Tensor> y = group->all_gather(lane, zeros(lane, DType::kF32, {2, 3}));
        if (world.rank() != 1) (void)y.wait(lane);
      }
      for (;;) world.barrier(lane);
    });
  });
  EXPECT_EQ(
      error,
      "rank 1: group 'cp' (ranks 0 1 2): all_gather(shard F32 [2, 3]) #0 was started, but its result was "
      "never waited for");
}

TEST(Failure, OverwrittenUnwaitedResultIsReported) {
  const std::string error = error_of([] {
    run_ranks(2, [](Communicator& world, Lane& lane) {
      Async<Tensor> y = world.all_reduce(lane, zeros(lane, DType::kF32, {1}));
      y = world.all_reduce(lane, zeros(lane, DType::kF32, {2}));
      (void)y.wait(lane);
    });
  });
  expect_parts(error, {"all_reduce(F32 [1], sum) #0 was started"});
}

TEST(Failure, HandledExceptionDoesNotHideACancelledOperation) {
  const std::string error = error_of([] {
    run_ranks(2, [](Communicator& world, Lane& lane) {
      try {
        const Async<Tensor> y = world.all_reduce(lane, zeros(lane, DType::kF32, {4}));
        if (world.rank() == 0) throw std::runtime_error("handled below");
        std::this_thread::sleep_for(20ms);
        throw std::runtime_error("handled below too");
      } catch (const std::runtime_error&) {
      }
    });
  });
  expect_parts(error, {"all_reduce(F32 [4], sum) #0 was cancelled by an exception"});
}

TEST(Failure, WaitingTwiceIsAFault) {
  expect_parts(error_of([] {
                 run_ranks(2, [](Communicator& world, Lane& lane) {
                   Async<Tensor> y = world.all_reduce(lane, zeros(lane, DType::kF32, {4}));
                   (void)y.wait(lane);
                   (void)y.wait(lane);
                 });
               }),
               {"waited for twice"});
}

// Memory of a rank that leaves must not be touched: its arena is unmapped as its stack unwinds, while others
// may be about to run, or running, the operations it has joined.
void leave_in_the_middle(const std::optional<LinkModel>& link) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 30; ++trial) {
    const int leaver = static_cast<int>(random() % 4), pause = static_cast<int>(random() % 2000);
    LocalOptions o = options(4, 60s);
    o.link = link;
    const std::string error = error_of([&] {
      run_ranks(o, [&](Communicator& world, Lane& lane) {
        const int me = world.rank();
        const Tensor big = zeros(lane, DType::kBF16, {4, 100'000}), small = zeros(lane, DType::kF32, {64});
        Async<Tensor> reduced = world.all_reduce(lane, big);
        Async<Tensor> scattered = world.reduce_scatter(lane, big);
        Async<std::vector<Tensor>> sent = world.send_receive(
            lane, {{(me + 1) % 4, small}}, {{(me + 3) % 4, zeros(lane, DType::kF32, {64})}});
        if (me == leaver) {
          std::this_thread::sleep_for(std::chrono::microseconds(pause));
          throw std::runtime_error("gone");
        }
        std::this_thread::sleep_for(std::chrono::microseconds(pause / 2));
        Async<Tensor> gathered = world.all_gather(lane, big);
        (void)sent.wait(lane);
        (void)scattered.wait(lane);
        (void)reduced.wait(lane);
        (void)gathered.wait(lane);
      });
    });
    ASSERT_EQ(error, fmt::format("rank {}: gone", leaver));
  }
}

TEST(Failure, LeavingInTheMiddle) {
  leave_in_the_middle({});
}
TEST(Failure, LeavingInTheMiddleOfALink) {
  leave_in_the_middle(LinkModel{500us, 1e9});
}

TEST(Failure, MismatchOnALinkEndsTheRun) {
  LocalOptions o = options(3, 60s);
  o.link = LinkModel{1ms, 1e9};
  expect_parts(
      error_of([&] {
        run_ranks(o, [](Communicator& world, Lane& lane) {
          (void)world.all_reduce(lane, zeros(lane, DType::kF32, {world.rank() == 1 ? 2 : 3})).wait(lane);
        });
      }),
      {"rank 1: group 'world'", "rank 1 called all_reduce(F32 [2], sum)"});
}

using FailureDeathTest = testing::Test;

TEST(FailureDeathTest, StuckRankEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        LocalOptions o = options(3, 100ms);
        o.grace = 200ms;
        run_ranks(o, [](Communicator& world, Lane& lane) {
          if (world.rank() == 2) {
            for (;;) std::this_thread::sleep_for(1h);
          }
          world.barrier(lane);
        });
      },
      testing::ExitedWithCode(1), "barrier\\(\\) #0 timed out after 0.1 s; rank 2 has not joined it");
}

}  // namespace
}  // namespace weft
