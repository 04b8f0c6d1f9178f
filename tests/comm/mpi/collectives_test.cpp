// The cases of the thread ranks on processes, and what only processes can get wrong.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/collective_cases.hpp"
#include "comm/mpi/world.hpp"
#include "comm/random_programs.hpp"

namespace weft {
namespace {

using namespace std::chrono_literals;
using test::at;
using test::Case;
using test::element;
using test::fill;
using test::on_mpi;

template <class T>
class MpiCollectivesTest : public testing::Test {};
TYPED_TEST_SUITE(MpiCollectivesTest, test::ElementTypes);

void for_each_case(const std::function<void(Communicator&, Lane&, const Case&, std::uint64_t)>& body) {
  on_mpi([&](Communicator& world, Lane& lane) {
    std::uint64_t id = 0;
    for (const Case& c : test::cases()) body(world, lane, c, id++);
  });
}

TYPED_TEST(MpiCollectivesTest, AllReduce) {
  for_each_case(test::check_all_reduce<TypeParam>);
}
TYPED_TEST(MpiCollectivesTest, AllReduceMax) {
  for_each_case(test::check_all_reduce_max<TypeParam>);
}
TYPED_TEST(MpiCollectivesTest, AllGather) {
  for_each_case(test::check_all_gather<TypeParam>);
}
TYPED_TEST(MpiCollectivesTest, ReduceScatter) {
  for_each_case(test::check_reduce_scatter<TypeParam>);
}
TYPED_TEST(MpiCollectivesTest, AllToAll) {
  for_each_case(test::check_all_to_all<TypeParam>);
}
TYPED_TEST(MpiCollectivesTest, Broadcast) {
  for_each_case(test::check_broadcast<TypeParam>);
}
TYPED_TEST(MpiCollectivesTest, RingsBothWays) {
  for_each_case(test::check_rings_both_ways<TypeParam>);
}

TEST(Mpi, RandomPrograms) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    on_mpi([&](Communicator& world, Lane& lane) { test::run_random_program(world, lane, seed); });
  }
}

// What this rank's memory holds after some of each operation, short and long.
template <class T>
std::vector<std::byte> results(Communicator& world, Lane& lane) {
  std::vector<std::byte> bytes;
  const auto keep = [&](const Tensor& y) {
    for (std::int64_t i = 0; i < y.elems(); ++i) {
      const T value = at<T>(y, i);
      const auto* raw = reinterpret_cast<const std::byte*>(&value);
      bytes.insert(bytes.end(), raw, raw + sizeof value);
    }
  };
  std::uint64_t id = 500;
  for (const std::int64_t columns : {1, 17, 1023, 10'007}) {
    for (const bool strided : {false, true}) {
      const auto input = [&](const Shape& shape) {
        Tensor x = test::make(lane, dtype_of<T>(), shape, strided);
        ++id;
        fill<T>(x, [&](std::int64_t i) { return element<T>(id, world.rank(), i); });
        return x;
      };
      keep(world.all_reduce(lane, input({2, columns})).wait(lane));
      keep(world.all_reduce(lane, input({2, columns}), ReduceOp::kMax).wait(lane));
      keep(world.reduce_scatter(lane, input({2 * world.size(), columns})).wait(lane));
      keep(world.all_gather(lane, input({2, columns})).wait(lane));
      keep(world.broadcast(lane, input({2, columns}), world.size() - 1).wait(lane));
    }
  }
  return bytes;
}

template <class T>
void compare_with_threads() {
  on_mpi([](Communicator& world, Lane& lane) {
    const std::vector<std::byte> mine = results<T>(world, lane);
    const auto size = static_cast<std::int64_t>(mine.size());
    const Tensor sent = Tensor::borrow(const_cast<std::byte*>(mine.data()), DType::kU8, {size});
    std::vector<Communicator::Message> receives;
    for (int r = 0; world.rank() == 0 && r < world.size(); ++r)
      receives.push_back({r, lane.alloc(DType::kU8, {size}, "results")});
    const std::vector<Tensor> all = world.send_receive(lane, {{0, sent}}, receives).wait(lane);
    if (world.rank() != 0) return;
    std::vector<std::vector<std::byte>> expected(static_cast<std::size_t>(world.size()));
    test::run_ranks(world.size(), [&](Communicator& threads, Lane& own) {
      expected[static_cast<std::size_t>(threads.rank())] = results<T>(threads, own);
    });
    for (std::size_t r = 0; r < expected.size(); ++r) {
      ASSERT_EQ(expected[r].size(), mine.size());
      EXPECT_TRUE(std::equal(expected[r].begin(), expected[r].end(), all[r].raw())) << "rank " << r;
    }
  });
}

TEST(Mpi, BitsEqualThoseOfThreadRanks) {
  compare_with_threads<float>();
  compare_with_threads<bf16>();
  compare_with_threads<f16>();
  compare_with_threads<double>();
  compare_with_threads<std::int64_t>();
}

TEST(Mpi, SplitOrdersByKeyAndLeavesOut) {
  on_mpi([](Communicator& world, Lane& lane) {
    const int n = world.size(), me = world.rank();
    const bool out = me == n - 1 && n > 2;
    const auto group = world.split(out ? -1 : me % 2, -me, me % 2 == 0 ? "even" : "odd");
    if (out) {
      EXPECT_EQ(group, nullptr);
      return;
    }
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->name(), me % 2 == 0 ? "even" : "odd");
    std::vector<int> members;
    for (int r = n - 1; r >= 0; --r) {
      if (r % 2 == me % 2 && !(r == n - 1 && n > 2)) members.push_back(r);
    }
    ASSERT_EQ(group->size(), static_cast<int>(members.size()));
    EXPECT_EQ(members[static_cast<std::size_t>(group->rank())], me);
    const Tensor x = lane.alloc(DType::kI32, {1}, "x");
    x.data<std::int32_t>()[0] = me;
    const Tensor all = group->all_gather(lane, x).wait(lane);
    EXPECT_EQ(std::vector<int>(all.values<std::int32_t>().begin(), all.values<std::int32_t>().end()),
              members);
    const auto alone = group->split(group->rank(), 0, "alone");
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(alone->split(-1, 0, "none"), nullptr);
  });
}

// A long operation, then short ones of the same group and of another with the same ranks: all in flight,
// waited for from the last to the first.
TEST(Mpi, OperationsInFlightDoNotMix) {
  on_mpi([](Communicator& world, Lane& lane) {
    const auto twin = world.split(0, 0, "twin");
    const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
    struct Flight {
      Async<Tensor> sum;
      Async<std::vector<Tensor>> ring;
      std::uint64_t id;
    };
    for (int round = 0; round < 3; ++round) {
      std::vector<Flight> flights;
      for (std::uint64_t i = 0; i < 24; ++i) {
        Communicator& group = i % 2 == 0 ? world : *twin;
        const std::int64_t size = i < 2 ? 300'000 : 1000 + 40 * static_cast<std::int64_t>(i % 3);
        const std::uint64_t id = 3000 + i;
        const auto make = [&](std::uint64_t what) {
          Tensor x = lane.alloc(DType::kF32, {size}, "x");
          const float first = element<float>(what, world.rank(), 0);
          for (std::int64_t k = 0; k < size; ++k) x.data<float>()[k] = first + static_cast<float>(k % 7);
          return x;
        };
        Async<Tensor> sum = group.all_reduce(lane, make(id));
        Async<std::vector<Tensor>> ring =
            group.send_receive(lane, {{next, make(id + 100)}}, {{previous, make(1)}});
        flights.push_back({std::move(sum), std::move(ring), id});
      }
      while (!flights.empty()) {
        Flight& f = flights.back();
        const Tensor got = f.ring.wait(lane)[0], y = f.sum.wait(lane);
        float expected = element<float>(f.id, 0, 0);
        for (int r = 1; r < n; ++r) expected += element<float>(f.id, r, 0);
        EXPECT_EQ(y.data<float>()[0], expected);
        EXPECT_EQ(y.data<float>()[7 * (y.elems() / 7 - 1)], expected);
        EXPECT_EQ(got.data<float>()[got.elems() / 7 * 7 - 7], element<float>(f.id + 100, previous, 0));
        flights.pop_back();
      }
    }
  });
}

// Sums so long that they go in pieces, the last of which has any length: fewer elements than ranks, too. Rank
// 0's memory may be strided and that of the others not.
TEST(Mpi, LongSumsOfAnyLength) {
  on_mpi([](Communicator& world, Lane& lane) {
    const int n = world.size(), me = world.rank();
    const std::int64_t piece = std::int64_t{1} << 17;  // of each rank, in fp32
    const auto make = [&](const Shape& shape, bool strided) {
      Tensor x = test::make(lane, DType::kF32, shape, strided && me == 0);
      fill<float>(x, [&](std::int64_t i) { return static_cast<float>((me + 1) * (i % 97)); });
      return x;
    };
    const auto expect_sums = [&](const Tensor& y, std::int64_t first) {
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < y.elems(); ++i) {
        const auto sum = static_cast<float>(n * (n + 1) / 2 * ((first + i) % 97));
        wrong += at<float>(y, i) != sum ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0) << "of " << y.elems();
    };
    for (const std::int64_t more : {0, 1, n - 1, n, n + 1, 1000}) {
      const std::int64_t shard = piece + more;
      expect_sums(world.all_reduce(lane, make({piece * n + more}, false)).wait(lane), 0);
      expect_sums(world.reduce_scatter(lane, make({shard * n}, false)).wait(lane), me * shard);
      // Three columns.
      const std::int64_t rows = shard / 3 + 1;
      expect_sums(world.all_reduce(lane, make({rows * n, 3}, true)).wait(lane), 0);
      const Tensor into = make({rows, 3}, true);
      expect_sums(world.reduce_scatter_into(lane, make({rows * n, 3}, true), into).wait(lane), me * rows * 3);
      expect_sums(world.reduce_scatter_into(lane, make({rows * n, 3}, false), into).wait(lane),
                  me * rows * 3);
    }
  });
}

// Rank 0 starts its part and then makes no call until the others, who wait, say they are through.
TEST(Mpi, OperationsGoOnWhileTheRankComputes) {
  on_mpi([](Communicator& world, Lane& lane) {
    const std::string flag = test::shared_path() + ".through";
    std::filesystem::remove(flag);
    world.barrier(lane);
    const Tensor x = lane.alloc(DType::kF32, {1'000'000}, "x");
    std::fill_n(x.data<float>(), x.elems(), 1.0f);
    Async<Tensor> sum = world.all_reduce(lane, x);
    if (world.rank() == 0 && world.size() > 1) {
      const auto until = std::chrono::steady_clock::now() + 20s;
      while (!std::filesystem::exists(flag) && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(5ms);
      EXPECT_TRUE(std::filesystem::exists(flag)) << "the others are still waiting for this rank's slice";
    }
    const Tensor y = sum.wait(lane);
    if (world.rank() == 1) std::ofstream(flag) << "1";
    EXPECT_EQ(y.data<float>()[999'999], static_cast<float>(world.size()));
    world.barrier(lane);
    std::filesystem::remove(flag);
  });
}

TEST(Mpi, BytesEqualThoseOfThreadRanks) {
  const auto traffic = [](Communicator& c, Lane& lane) {
    const std::uint64_t before = c.bytes_sent();
    const auto tensor = [&](const Shape& shape) {
      Tensor x = lane.alloc(DType::kF32, shape, "x");
      std::fill_n(x.raw(), x.bytes(), std::byte{0});
      return x;
    };
    const int n = c.size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    (void)c.all_reduce(lane, tensor({7, 3})).wait(lane);
    (void)c.all_gather(lane, tensor({2, 5})).wait(lane);
    (void)c.reduce_scatter(lane, tensor({n * 3, 2})).wait(lane);
    (void)c.broadcast(lane, tensor({11}), n - 1).wait(lane);
    (void)c.send_receive(lane, {{next, tensor({6})}}, {{previous, tensor({6})}}).wait(lane);
    return c.bytes_sent() - before;
  };
  on_mpi([&](Communicator& world, Lane& lane) {
    const std::uint64_t mine = traffic(world, lane);
    std::uint64_t threads = 0;
    test::run_ranks(world.size(), [&](Communicator& local, Lane& own) {
      const std::uint64_t bytes = traffic(local, own);
      if (local.rank() == world.rank()) threads = bytes;
    });
    EXPECT_EQ(mine, threads);
  });
}

// 2 GiB and a little, which no single count of MPI can say.
TEST(Mpi, MessagesBeyondTwoGigabytes) {
  if (std::getenv("WEFT_TEST_LARGE") == nullptr) {
    GTEST_SKIP() << "takes 2 GiB a rank: set WEFT_TEST_LARGE=1. Cut messages are tested with short pieces.";
  }
  on_mpi([](Communicator& world, Lane& lane) {
    std::vector<std::uint8_t> memory((std::size_t{1} << 31) + 4099);
    const auto value = [](std::size_t i) { return static_cast<std::uint8_t>(i * 2654435761u >> 13); };
    if (world.rank() == 0) {
      for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = value(i);
    }
    const Tensor x = Tensor::borrow(memory.data(), DType::kU8, {static_cast<std::int64_t>(memory.size())});
    (void)world.broadcast(lane, x, 0).wait(lane);
    for (std::size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory[i], value(i)) << i;
  });
}

}  // namespace
}  // namespace weft
