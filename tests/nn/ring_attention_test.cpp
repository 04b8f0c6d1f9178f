// Attention over a sequence that is cut over ranks against the same attention on one rank.
#include "nn/attention/context/ring_attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "comm/local/launcher.hpp"
#include "ops/elementwise.hpp"
#include "support/rank.hpp"

namespace weft {
namespace {

using testing::TestRank;

struct Case {
  int ranks;
  std::int64_t chunk, batch, heads, groups;
  int head_dim;
  std::int64_t window = 0;

  std::int64_t length() const { return 2 * ranks * chunk; }
  std::string name() const {
    return fmt::format("cp {} chunk {} b {} heads {}/{} of {} window {}", ranks, chunk, batch, heads, groups,
                       head_dim, window);
  }
};

nn::CoreAttentionShape shape_of(const Case& c) {
  return {.head_dim = c.head_dim, .scale = 0.4, .window = c.window};
}

Tensor random(Lane& lane, DType dtype, const Shape& shape, std::uint64_t seed) {
  const Tensor x = lane.alloc(dtype, shape, "test");
  std::vector<double> values = testing::random_values(seed, shape.elems());
  ops::copy(lane, Tensor::borrow(values.data(), DType::kF64, shape), x);
  return x;
}

// q, k, v as views of one packed tensor, and the gradient of the result, of the whole sequence.
struct Whole {
  Whole(Lane& lane, DType dtype, const Case& c)
      : q_width(c.heads * c.head_dim),
        kv_width(c.groups * c.head_dim),
        qkv(random(lane, dtype, {c.length(), c.batch, q_width + 2 * kv_width}, 1)),
        dout(random(lane, dtype, {c.length(), c.batch, q_width}, 2)) {}
  std::int64_t q_width, kv_width;
  Tensor qkv, dout;
};

// out and dqkv of these rows.
std::pair<Tensor, Tensor> run(Lane& lane, const nn::CoreAttention& attention, const Whole& w,
                              const Tensor& qkv, const Tensor& dout) {
  const auto pieces = [&](const Tensor& x) {
    return std::array{x.slice_columns(0, w.q_width), x.slice_columns(w.q_width, w.kv_width),
                      x.slice_columns(w.q_width + w.kv_width, w.kv_width)};
  };
  Microbatch mb;
  const auto [q, k, v] = pieces(qkv);
  const Tensor out = attention.forward(lane, q, k, v, mb);
  const Tensor dqkv = lane.alloc(qkv.dtype(), qkv.shape(), "test");
  const auto [dq, dk, dv] = pieces(dqkv);
  attention.backward(lane, dout, dq, dk, dv, mb);
  EXPECT_TRUE(mb.saved.empty());
  return {out, dqkv};
}

// This rank's chunks, one after the other.
Tensor own(Lane& lane, const Tensor& x, const nn::Zigzag& zigzag, int rank) {
  Shape shape = x.shape();
  shape.set(0, 2 * zigzag.chunk);
  const Tensor y = lane.alloc(x.dtype(), shape, "test");
  for (int half = 0; half < 2; ++half) {
    ops::copy(lane, x.slice(zigzag.starts(rank)[static_cast<std::size_t>(half)], zigzag.chunk),
              y.slice(half * zigzag.chunk, zigzag.chunk));
  }
  return y;
}

double furthest(Lane& lane, const Tensor& a, const Tensor& b) {
  const auto x = ops::to_host<double>(lane, ops::cast(lane, a, DType::kF64, "test")),
             y = ops::to_host<double>(lane, ops::cast(lane, b, DType::kF64, "test"));
  double most = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) return INFINITY;
    most = std::max(most, std::abs(x[i] - y[i]));
  }
  return most;
}

void expect_equal_to_one_rank(const Case& c, DType dtype, double tolerance) {
  run_local_ranks({.ranks = c.ranks}, [&](Communicator& world) {
    TestRank rank(std::size_t{1} << 25);
    Lane& lane = rank.lane();
    const Whole whole(lane, dtype, c);
    const auto [out, dqkv] = run(lane, nn::CausalAttention(shape_of(c)), whole, whole.qkv, whole.dout);
    const nn::Zigzag zigzag(c.length(), c.ranks);
    const auto mine = [&](const Tensor& x) { return own(lane, x, zigzag, world.rank()); };
    const nn::RingAttention ring(shape_of(c), world);
    const auto [ring_out, ring_dqkv] = run(lane, ring, whole, mine(whole.qkv), mine(whole.dout));
    EXPECT_LE(furthest(lane, ring_out, mine(out)), tolerance) << c.name() << " rank " << world.rank();
    EXPECT_LE(furthest(lane, ring_dqkv, mine(dqkv)), tolerance * 4) << c.name() << " rank " << world.rank();
    // The same bits again.
    const auto [again, dqkv_again] = run(lane, ring, whole, mine(whole.qkv), mine(whole.dout));
    EXPECT_EQ(furthest(lane, again, ring_out), 0);
    EXPECT_EQ(furthest(lane, dqkv_again, ring_dqkv), 0);
  });
}

TEST(RingAttention, EqualsOneRank) {
  for (const Case& c : {Case{1, 6, 2, 4, 2, 8}, Case{2, 5, 2, 4, 2, 8}, Case{3, 7, 1, 3, 3, 16},
                        Case{4, 9, 2, 6, 2, 4}, Case{5, 1, 1, 2, 1, 8}, Case{2, 70, 1, 2, 1, 8},
                        Case{3, 7, 2, 4, 2, 8, 5}, Case{4, 6, 1, 2, 2, 8, 13}, Case{2, 40, 1, 2, 1, 8, 1}}) {
    expect_equal_to_one_rank(c, DType::kF64, 1e-13);
    expect_equal_to_one_rank(c, DType::kF32, 5e-6);
    expect_equal_to_one_rank(c, DType::kBF16, 0.03);
  }
}

// Under the causal mask every rank has the same number of pairs of chunks to compute, and half of all.
TEST(RingAttention, RanksShareTheWorkEvenly) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    const nn::Zigzag zigzag(2 * ranks * 16, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      std::int64_t seen = 0;
      for (const std::int64_t q : zigzag.starts(rank)) seen += q / zigzag.chunk + 1;
      EXPECT_EQ(seen, 2 * ranks + 1);
    }
  }
}

TEST(RingAttention, ARankThatHoldsLessTakesLess) {
  const auto bytes = [](int ranks) {
    const Case c{ranks, 64 / ranks, 1, 4, 4, 16};
    std::size_t most = 0;
    std::mutex mutex;
    run_local_ranks({.ranks = ranks}, [&](Communicator& world) {
      TestRank rank(std::size_t{1} << 25);
      Lane& lane = rank.lane();
      const Shape shape{2 * c.chunk, 1, 64};
      const Tensor q = random(lane, DType::kF32, shape, 1), k = random(lane, DType::kF32, shape, 2),
                   v = random(lane, DType::kF32, shape, 3);
      const nn::RingAttention ring(shape_of(c), world);
      Microbatch mb;
      const std::size_t before = lane.arena.in_use();
      const Tensor out = ring.forward(lane, q, k, v, mb);
      const std::lock_guard lock(mutex);
      most = std::max(most, lane.arena.in_use() - before);
      mb.saved.clear();
    });
    return most;
  };
  EXPECT_EQ(bytes(4) * 4, bytes(1));
}

TEST(Zigzag, RefusesWhatDoesNotDivide) {
  EXPECT_THROW(nn::Zigzag(30, 4), std::exception);
  EXPECT_EQ(nn::Zigzag(32, 4).starts(1), (std::array<std::int64_t, 2>{4, 24}));
}

}  // namespace
}  // namespace weft
