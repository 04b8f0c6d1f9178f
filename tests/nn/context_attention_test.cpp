// Attention over a sequence that is cut over ranks against the same attention on one rank.
#include "nn/attention/context/exchanged_attention.hpp"
#include "nn/attention/context/gathered_attention.hpp"
#include "nn/attention/context/ring_attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "comm/local/launcher.hpp"
#include "core/host_tools.hpp"
#include "io/safetensors.hpp"
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
  double dropout = 0;
  bool documents = false;

  std::int64_t length() const { return 2 * ranks * chunk; }
  std::string name() const {
    return fmt::format("cp {} chunk {} b {} heads {}/{} of {} window {} dropout {} documents {}", ranks,
                       chunk, batch, heads, groups, head_dim, window, dropout, documents);
  }
};

nn::CoreAttentionShape shape_of(const Case& c) {
  return {.head_dim = c.head_dim, .scale = 0.4, .dropout = c.dropout, .window = c.window, .site = 5};
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

// Of the whole sequence: sample numbers and, where there are documents, their beginnings.
Microbatch microbatch(Lane& lane, const Case& c) {
  Microbatch mb;
  mb.dropout_key = RandomKey{77};
  mb.batch.sample_ids = lane.alloc(DType::kI64, {c.batch}, "test");
  for (std::int64_t b = 0; b < c.batch; ++b) mb.batch.sample_ids.data<std::int64_t>()[b] = 40 + b;
  if (!c.documents) return mb;
  mb.batch.first_keys = lane.alloc(DType::kI32, {c.batch, c.length()}, "test");
  for (std::int64_t b = 0; b < c.batch; ++b) {
    std::int32_t begin = 0;
    for (std::int32_t i = 0; i < c.length(); ++i) {
      if ((i * 7 + b * 3) % 11 == 4) begin = i;
      mb.batch.first_keys.data<std::int32_t>()[b * c.length() + i] = begin;
    }
  }
  return mb;
}

// out and dqkv of these rows.
std::pair<Tensor, Tensor> run(Lane& lane, const nn::CoreAttention& attention, Microbatch& mb, const Whole& w,
                              const Tensor& qkv, const Tensor& dout) {
  const auto pieces = [&](const Tensor& x) {
    return std::array{x.slice_columns(0, w.q_width), x.slice_columns(w.q_width, w.kv_width),
                      x.slice_columns(w.q_width + w.kv_width, w.kv_width)};
  };
  const auto [q, k, v] = pieces(qkv);
  const Tensor out = attention.forward(lane, q, k, v, mb);
  const Tensor dqkv = lane.alloc(qkv.dtype(), qkv.shape(), "test");
  const auto [dq, dk, dv] = pieces(dqkv);
  attention.backward(lane, dout, dq, dk, dv, mb);
  EXPECT_TRUE(mb.saved.empty());
  return {out, dqkv};
}

// This rank's chunks, one after the other.
Tensor own(Lane& lane, const Tensor& x, const nn::SequenceCut& cut, int rank) {
  Shape shape = x.shape();
  shape.set(0, cut.rows());
  const Tensor y = lane.alloc(x.dtype(), shape, "test");
  for (int i = 0; i < cut.chunks(); ++i) {
    ops::copy(lane, x.slice(cut.start(rank, i), cut.chunk), y.slice(i * cut.chunk, cut.chunk));
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

enum class Method { kRing, kGathered, kExchanged, kGroups };

// What one rank of `world` has of the attention of a sequence cut over all of it.
class Parallel {
 public:
  // `groups`: of kGroups, ranks that exchange heads.
  Parallel(Method method, const Case& c, Communicator& world, const nn::SequenceCut& cut, int groups = 1)
      : Parallel(method, c, world, cut, groups, shape_of(c)) {}
  Parallel(Method method, const Case& c, Communicator& world, const nn::SequenceCut& cut, int groups,
           nn::CoreAttentionShape shape) {
    const auto exchanged = [&](Communicator& group, std::unique_ptr<nn::CoreAttention> inner) {
      return std::make_unique<nn::ExchangedAttention>(
          c.head_dim, group, nn::SequenceCut(cut.order, cut.rows() * group.size(), group.size()),
          std::move(inner));
    };
    const auto heads_of = [&](Communicator& group) {
      shape.first_head = shape.first_sink = group.rank() * c.heads / group.size();
      return shape;
    };
    switch (method) {
      case Method::kRing:
        attention_ = std::make_unique<nn::RingAttention>(shape, world, cut);
        break;
      case Method::kGathered:
        attention_ = std::make_unique<nn::GatheredAttention>(shape, world, cut);
        break;
      case Method::kExchanged:
        attention_ = exchanged(world, std::make_unique<nn::CausalAttention>(heads_of(world)));
        break;
      case Method::kGroups:
        a2a_ = world.split(world.rank() / groups, world.rank(), "a2a");
        p2p_ = world.split(world.rank() % groups, world.rank(), "p2p");
        attention_ = exchanged(
            *a2a_, std::make_unique<nn::RingAttention>(
                       heads_of(*a2a_), *p2p_, nn::SequenceCut(cut.order, cut.length(), p2p_->size())));
    }
  }
  const nn::CoreAttention& attention() const { return *attention_; }

 private:
  std::unique_ptr<Communicator> a2a_, p2p_;
  std::unique_ptr<nn::CoreAttention> attention_;
};

struct Layout {
  Method method;
  nn::SequenceOrder order = nn::SequenceOrder::kZigzag;
  int groups = 1;
};

void expect_equal_to_one_rank(const Layout& layout, const Case& c, DType dtype, double tolerance) {
  run_local_ranks({.ranks = c.ranks}, [&](Communicator& world) {
    TestRank rank(std::size_t{1} << 26);
    Lane& lane = rank.lane();
    const Whole whole(lane, dtype, c);
    const nn::SequenceCut cut(layout.order, c.length(), c.ranks);
    const auto mine = [&](const Tensor& x) { return own(lane, x, cut, world.rank()); };
    Microbatch mb = microbatch(lane, c);
    const auto [out, dqkv] = run(lane, nn::CausalAttention(shape_of(c)), mb, whole, whole.qkv, whole.dout);
    const Parallel parallel(layout.method, c, world, cut, layout.groups);
    const auto [own_out, own_dqkv] =
        run(lane, parallel.attention(), mb, whole, mine(whole.qkv), mine(whole.dout));
    EXPECT_LE(furthest(lane, own_out, mine(out)), tolerance) << c.name() << " rank " << world.rank();
    EXPECT_LE(furthest(lane, own_dqkv, mine(dqkv)), tolerance * 4) << c.name() << " rank " << world.rank();
    // The same bits again.
    const auto [again, dqkv_again] =
        run(lane, parallel.attention(), mb, whole, mine(whole.qkv), mine(whole.dout));
    EXPECT_EQ(furthest(lane, again, own_out), 0);
    EXPECT_EQ(furthest(lane, dqkv_again, own_dqkv), 0);
  });
}

void expect_equal_in_every_type(const Layout& layout, const Case& c) {
  expect_equal_to_one_rank(layout, c, DType::kF64, 1e-13);
  expect_equal_to_one_rank(layout, c, DType::kF32, 5e-6);
  expect_equal_to_one_rank(layout, c, DType::kBF16, 0.03);
}

constexpr nn::SequenceOrder kContiguous = nn::SequenceOrder::kContiguous;

std::vector<Case> cases() {
  return {{1, 6, 2, 4, 2, 8},
          {2, 5, 2, 4, 2, 8},
          {3, 7, 1, 3, 3, 16},
          {4, 9, 2, 8, 2, 4},
          {5, 1, 1, 5, 1, 8},
          {2, 70, 1, 2, 1, 8},
          {3, 7, 2, 6, 2, 8, 5},
          {4, 6, 1, 4, 2, 8, 13},
          {2, 40, 1, 2, 1, 8, 1},
          {3, 9, 2, 3, 1, 8, 0, 0.3},
          {2, 12, 2, 4, 2, 8, 9, 0.2},
          {3, 8, 2, 6, 3, 8, 0, 0, true},
          {2, 16, 2, 2, 2, 8, 7, 0.1, true}};
}

TEST(RingAttention, EqualsOneRank) {
  for (const Case& c : cases()) {
    expect_equal_in_every_type({Method::kRing}, c);
    expect_equal_in_every_type({Method::kRing, kContiguous}, c);
  }
}

TEST(GatheredAttention, EqualsOneRank) {
  for (const Case& c : cases()) {
    expect_equal_in_every_type({Method::kGathered}, c);
    expect_equal_in_every_type({Method::kGathered, kContiguous}, c);
  }
}

TEST(ExchangedAttention, EqualsOneRank) {
  for (Case c : cases()) {
    if (c.heads % c.ranks != 0 || (c.groups % c.ranks != 0 && c.ranks % c.groups != 0)) continue;
    expect_equal_in_every_type({Method::kExchanged}, c);
    expect_equal_in_every_type({Method::kExchanged, kContiguous}, c);
  }
}

TEST(ExchangedAttention, InGroupsEqualsOneRank) {
  for (const Case& c : {Case{4, 9, 2, 8, 2, 4}, Case{4, 6, 1, 4, 1, 8, 13}, Case{4, 5, 2, 6, 2, 8, 0, 0.3}}) {
    expect_equal_in_every_type({Method::kGroups, nn::SequenceOrder::kZigzag, 2}, c);
  }
  expect_equal_in_every_type({Method::kGroups, nn::SequenceOrder::kZigzag, 3}, {6, 4, 1, 6, 3, 8});
  expect_equal_in_every_type({Method::kGroups, nn::SequenceOrder::kZigzag, 2}, {6, 4, 1, 4, 2, 8});
}

// --- golden operations, cut: 11 positions, filled up to what each cut needs

struct GoldenCase {
  std::string name;
  std::int64_t window = 0;
  double soft_cap = 0;
};

// [b, s, columns] of the file as [s, b, columns], filled up with zeros to `length` positions.
Tensor golden_rows(Lane& lane, const SafetensorsFile& file, const std::string& name, std::int64_t columns,
                   std::int64_t length) {
  const Tensor in = file.get(name);
  const Tensor x = lane.alloc(DType::kF64, {length, 2, columns}, "test");
  ops::fill(lane, x, 0);
  const std::vector<double> values = testing::to_doubles(in);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < 11; ++i) {
      for (std::int64_t c = 0; c < columns; ++c) {
        x.data<double>()[(i * 2 + b) * columns + c] =
            values[static_cast<std::size_t>((b * 11 + i) * columns + c)];
      }
    }
  }
  return x;
}

void expect_golden(const GoldenCase& golden, Method method, nn::SequenceOrder order, int ranks) {
  const SafetensorsFile file(std::string(WEFT_SOURCE_DIR) + "/tests/golden/ops/" + golden.name +
                             "/tensors.safetensors");
  const std::int64_t unit = nn::SequenceCut::multiple(order, ranks, 1),
                     length = (11 + unit - 1) / unit * unit;
  const Case c{ranks, 0, 2, 4, 2, 8};
  std::vector<double> dsinks(4, 0);
  std::mutex mutex;
  run_local_ranks({.ranks = ranks}, [&](Communicator& world) {
    TestRank rank(std::size_t{1} << 25);
    Lane& lane = rank.lane();
    const nn::SequenceCut cut(order, length, ranks);
    const auto mine = [&](const char* name, std::int64_t columns) {
      return own(lane, golden_rows(lane, file, name, columns, length), cut, world.rank());
    };
    Microbatch mb;
    if (file.contains("doc_id")) {
      const std::vector<double> id = testing::to_doubles(file.get("doc_id"));
      mb.batch.first_keys = lane.alloc(DType::kI32, {2, length}, "test");
      for (std::int64_t i = 0; i < 2 * length; ++i) {
        const std::int64_t b = i / length, at = std::min<std::int64_t>(i % length, 10);
        std::int64_t begin = at;
        while (begin > 0 &&
               id[static_cast<std::size_t>(b * 11 + begin - 1)] == id[static_cast<std::size_t>(b * 11 + at)])
          --begin;
        mb.batch.first_keys.data<std::int32_t>()[i] = static_cast<std::int32_t>(begin);
      }
    }
    Param sinks("sinks", {4}, {{"sinks", {4}, -1, 0, 4, 0, {}}}, {});
    nn::CoreAttentionShape shape{
        .head_dim = 8, .scale = 0.35355339059327373, .window = golden.window, .soft_cap = golden.soft_cap};
    if (file.contains("sinks")) {
      const Tensor weight = lane.alloc(DType::kF64, {4}, "test"),
                   gradient = lane.alloc(DType::kF64, {4}, "test");
      std::vector<double> values = testing::to_doubles(file.get("sinks"));
      ops::from_host(lane, values, weight);
      ops::fill(lane, gradient, NAN);
      sinks.bind(weight, gradient, nullptr);
      sinks.begin_step(1);
      shape.sinks = &sinks;
    }
    const Parallel parallel(method, c, world, cut, 1, shape);
    const Tensor out = parallel.attention().forward(lane, mine("q", 32), mine("k", 16), mine("v", 16), mb);
    for (std::int64_t row = 0; row < cut.rows(); ++row) {  // what fills the sequence up sees keys too
      if (cut.positions(world.rank()).of(row) >= 11) ops::fill(lane, out.slice(row, 1), 0);
    }
    EXPECT_LE(furthest(lane, out, mine("o", 32)), 1.1e-5) << golden.name << " on " << ranks;
    const Tensor dq = lane.alloc(DType::kF64, out.shape(), "test");
    const Tensor dk = lane.alloc(DType::kF64, {cut.rows(), 2, 16}, "test"),
                 dv = lane.alloc(DType::kF64, {cut.rows(), 2, 16}, "test");
    parallel.attention().backward(lane, mine("do", 32), dq, dk, dv, mb);
    EXPECT_LE(furthest(lane, dq, mine("dq", 32)), 1.1e-5) << golden.name << " on " << ranks;
    EXPECT_LE(furthest(lane, dk, mine("dk", 16)), 1.1e-5) << golden.name << " on " << ranks;
    EXPECT_LE(furthest(lane, dv, mine("dv", 16)), 1.1e-5) << golden.name << " on " << ranks;
    if (shape.sinks == nullptr) return;
    const std::lock_guard lock(mutex);
    const std::vector<double> part = ops::to_host<double>(lane, sinks.main_grad());
    for (std::size_t h = 0; h < 4; ++h) dsinks[h] += part[h];
  });
  if (!file.contains("dsinks")) return;
  const std::vector<double> expected = testing::to_doubles(file.get("dsinks"));
  for (std::size_t h = 0; h < 4; ++h)
    EXPECT_NEAR(dsinks[h], expected[h], 2e-5) << golden.name << " on " << ranks;
}

TEST(ContextAttention, GoldenOperationsCut) {
  for (const GoldenCase& golden :
       {GoldenCase{"attention_causal_gqa"}, GoldenCase{"attention_sliding_window", 4},
        GoldenCase{"attention_softcap", 0, 5}, GoldenCase{"attention_sinks"},
        GoldenCase{"attention_packed_docs"}}) {
    for (const nn::SequenceOrder order : {nn::SequenceOrder::kZigzag, kContiguous}) {
      for (const int ranks : {1, 2, 3, 4}) {
        expect_golden(golden, Method::kRing, order, ranks);
        expect_golden(golden, Method::kGathered, order, ranks);
        if (ranks != 3) expect_golden(golden, Method::kExchanged, order, ranks);
      }
    }
  }
}

// Pairs of a query and a key that it sees, half of a block on the diagonal, which a rank's forward pass over
// a causal ring computes: by what its operations say of themselves.
std::vector<double> pairs_of_ranks(int ranks, nn::SequenceOrder order, std::int64_t length) {
  std::vector<double> pairs(static_cast<std::size_t>(ranks));
  run_local_ranks({.ranks = ranks}, [&](Communicator& world) {
    TestRank rank(std::size_t{1} << 25);
    Lane& lane = rank.lane();
    const nn::SequenceCut cut(order, length, ranks);
    const Shape shape{cut.rows(), 1, 32};
    const Tensor q = random(lane, DType::kF32, shape, 1), k = random(lane, DType::kF32, shape, 2),
                 v = random(lane, DType::kF32, shape, 3);
    const nn::RingAttention ring({.head_dim = 16}, world, cut);
    Microbatch mb;
    HostTools tools;
    lane.tools = &tools;
    tools.trace(true);
    ring.forward(lane, q, k, v, mb);
    for (const TracedOperation& op : tools.traced()) {
      // Two products of 2 · 32 operations for each pair.
      pairs[static_cast<std::size_t>(world.rank())] += op.cost.flops / 128;
    }
    lane.tools = nullptr;
    mb.saved.clear();
  });
  return pairs;
}

// In zigzag order all ranks have the same work; in contiguous order the last of n has 2n - 1 times that of
// the first. No order computes more than the causal mask shows.
TEST(RingAttention, WorkIsEvenInZigzagOrderAnd2nMinus1To1InContiguousOrder) {
  for (const int ranks : {2, 3, 4, 8}) {
    const std::int64_t length = 32 * ranks;  // chunks of 16 rows
    for (const auto order : {nn::SequenceOrder::kZigzag, kContiguous}) {
      const std::vector<double> pairs = pairs_of_ranks(ranks, order, length);
      const auto [least, most] = std::minmax_element(pairs.begin(), pairs.end());
      EXPECT_GT(*least, 0);
      if (order == kContiguous) {
        EXPECT_EQ(*most / *least, 2 * ranks - 1);
        EXPECT_EQ(most - pairs.begin(), ranks - 1);
      } else {
        EXPECT_LT(*most / *least, 1.02);
      }
      const auto all = static_cast<double>(length * length);
      EXPECT_EQ(std::accumulate(pairs.begin(), pairs.end(), 0.0), all / 2) << ranks;
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
      const nn::RingAttention ring(shape_of(c), world,
                                   nn::SequenceCut(nn::SequenceOrder::kZigzag, c.length(), ranks));
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

TEST(SequenceCut, SaysWhoHasWhat) {
  using enum nn::SequenceOrder;
  EXPECT_THROW(nn::SequenceCut(kZigzag, 30, 4), std::exception);
  const nn::SequenceCut zigzag(kZigzag, 16, 2);
  std::vector<std::int64_t> positions;
  for (std::int64_t row = 0; row < zigzag.rows(); ++row) positions.push_back(zigzag.positions(0).of(row));
  EXPECT_EQ(positions, (std::vector<std::int64_t>{0, 1, 2, 3, 12, 13, 14, 15}));
  EXPECT_EQ(zigzag.positions(1).from(3).of(0), 7);
  EXPECT_EQ(zigzag.positions(1).from(3).of(1), 8);
  EXPECT_EQ(zigzag.positions(0).from(5).of(1), 14);
  const nn::SequenceCut contiguous(kContiguous, 15, 3);
  EXPECT_EQ(contiguous.positions(2).of(4), 14);
  for (const nn::SequenceCut& cut : {nn::SequenceCut(kZigzag, 24, 3), nn::SequenceCut(kContiguous, 24, 3)}) {
    for (int rank = 0; rank < 3; ++rank) {
      for (int i = 0; i < cut.chunks(); ++i) {
        const nn::SequenceCut::Place place = cut.place(cut.number(rank, i));
        EXPECT_EQ(place.rank, rank);
        EXPECT_EQ(place.index, i);
      }
    }
  }
  EXPECT_EQ(nn::SequenceCut::multiple(kZigzag, 2, 4), 8);
  EXPECT_EQ(nn::SequenceCut::multiple(kZigzag, 8, 1), 16);
  EXPECT_EQ(nn::SequenceCut::multiple(kContiguous, 3, 4), 12);
}

}  // namespace
}  // namespace weft
