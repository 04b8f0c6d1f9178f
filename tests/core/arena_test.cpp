#include "core/arena.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>

namespace weft {
namespace {

constexpr std::size_t kUnit = Arena::kAlignment;

Tensor take(Arena& arena, std::size_t units, const char* what = "test") {
  return arena.alloc(DType::kU8, {static_cast<std::int64_t>(units * kUnit)}, what);
}
std::size_t offset(const Arena& arena, const Tensor& base, const Tensor& x) {
  EXPECT_GT(arena.capacity(), 0U);
  return static_cast<std::size_t>(x.raw() - base.raw()) / kUnit;
}

TEST(Arena, GivesTheLowestAddressThatFits) {
  const auto arena = Arena::host(64 * kUnit);
  const Tensor first = take(*arena, 2);
  Tensor second = take(*arena, 4), third = take(*arena, 1);
  EXPECT_EQ(offset(*arena, first, second), 2U);
  EXPECT_EQ(offset(*arena, first, third), 6U);
  second = {};
  EXPECT_EQ(offset(*arena, first, take(*arena, 5)), 7U);  // the hole is too small
  const Tensor three = take(*arena, 3), one = take(*arena, 1);
  EXPECT_EQ(offset(*arena, first, three), 2U);
  EXPECT_EQ(offset(*arena, first, one), 5U);
}

TEST(Arena, FreeNeighboursJoinInWhateverOrderTheyGo) {
  for (const std::array<int, 3>& order :
       {std::array{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    const auto arena = Arena::host(8 * kUnit);
    const Tensor base = take(*arena, 1);
    std::array<Tensor, 3> pieces{take(*arena, 2), take(*arena, 2), take(*arena, 2)};
    const Tensor end = take(*arena, 1);
    for (const int i : order) pieces[static_cast<std::size_t>(i)] = {};
    EXPECT_EQ(offset(*arena, base, take(*arena, 6)), 1U);
    EXPECT_EQ(arena->in_use(), 2 * kUnit);
  }
}

TEST(Arena, CountsWhatIsLiveAndHowHighItWent) {
  const auto arena = Arena::host(16 * kUnit);
  Tensor a = arena->alloc(DType::kF32, {1}, "a"), b = take(*arena, 3, "b");
  EXPECT_EQ(arena->in_use(), 4 * kUnit);  // sizes are rounded up
  const Tensor copy = b;
  b = {};
  EXPECT_EQ(arena->in_use(), 4 * kUnit);  // a handle is left
  a = {};
  EXPECT_EQ(arena->in_use(), 3 * kUnit);
  EXPECT_EQ(arena->high_water(), 4 * kUnit);
  take(*arena, 9);
  EXPECT_EQ(arena->high_water(), 13 * kUnit);
  arena->reset_high_water();
  EXPECT_EQ(arena->high_water(), 4 * kUnit);
  EXPECT_EQ(arena->allocations(), 3U);
  const std::vector<Arena::Item> items = arena->largest(4);
  ASSERT_EQ(items.size(), 1U);
  EXPECT_STREQ(items[0].what, "b");
  EXPECT_EQ(items[0].bytes, 3 * kUnit);
}

TEST(Arena, NamesTheLargestItemsWhenFull) {
  const auto arena = Arena::host(16 * kUnit);
  const Tensor small = take(*arena, 2, "small thing"), large = take(*arena, 10, "large thing");
  try {
    take(*arena, 5, "one more");
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("one more"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(5 * kUnit)), std::string::npos) << text;
    EXPECT_LT(text.find("large thing"), text.find("small thing")) << text;
  }
  EXPECT_EQ(arena->in_use(), 12 * kUnit);
}

// The same calls on meta memory reach the same height, and an arena of that height is enough.
TEST(Arena, MetaMemoryFindsTheSize) {
  const auto play = [](Arena& arena) {
    std::mt19937 random(7);
    std::vector<Tensor> live;
    std::vector<std::uintptr_t> addresses;
    for (int i = 0; i < 2000; ++i) {
      if (live.size() > 20 || (!live.empty() && random() % 3 == 0)) {
        std::swap(live[random() % live.size()], live.back());
        live.pop_back();
      } else {
        live.push_back(arena.alloc(DType::kBF16, {static_cast<std::int64_t>(1 + random() % 5000)}, "test"));
        addresses.push_back(reinterpret_cast<std::uintptr_t>(live.back().raw()));
      }
    }
    const std::uintptr_t first = addresses.front();  // the lowest of all
    for (std::uintptr_t& a : addresses) a -= first;
    return addresses;
  };
  const auto meta = Arena::meta();
  const auto expected = play(*meta);
  const auto real = Arena::host(meta->high_water());
  EXPECT_EQ(play(*real), expected);
  EXPECT_EQ(real->high_water(), meta->high_water());
}

TEST(Arena, TheStateSaysWhetherAddressesWillBeTheSame) {
  const auto arena = Arena::host(64 * kUnit);
  const std::uint64_t empty = arena->state_hash();
  Tensor a = take(*arena, 2), b = take(*arena, 2), c = take(*arena, 2);
  const std::uint64_t three = arena->state_hash();
  EXPECT_NE(three, empty);
  b = {};
  const std::uint64_t hole = arena->state_hash();
  EXPECT_NE(hole, three);
  a = {};
  EXPECT_NE(arena->state_hash(), hole);  // as many bytes in use, elsewhere
  a = take(*arena, 2);
  EXPECT_EQ(arena->state_hash(), hole);
  a = b = c = {};
  EXPECT_EQ(arena->state_hash(), empty);
}

TEST(Arena, TheLastHandleMayGoInAnotherThread) {
  const auto arena = Arena::host(1024 * kUnit);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([piece = take(*arena, 3)]() mutable { piece = {}; });
    }
    const Tensor here = take(*arena, 5);
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(arena->in_use(), 0U);
  take(*arena, 1024);  // all in one piece again
}

}  // namespace
}  // namespace weft
