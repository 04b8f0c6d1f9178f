// The overlapped linears against the plain ones: the same bits, no more memory, and communication that really
// stands open while products run. Which is told without a clock: an operation is hidden when matrix products
// came between its start and its wait.
#include <gtest/gtest.h>

#include <map>

#include "comm/local/launcher.hpp"
#include "nn/tensor_parallel_ranks.hpp"
#include "nn/whole_linear.hpp"

namespace weft {
namespace {

using testing::Cut;
using testing::Form;
using testing::PassingCommunicator;
using testing::ShardedRank;
using testing::TestRank;

struct Sizes {
  std::int64_t s, b, in, out;  // s outside the region; in and out global
};

std::vector<std::byte> bytes_of_tensor(const Tensor& x) {
  return {x.raw(), x.raw() + x.bytes()};
}

// Every tensor that a column- and a row-parallel linear make, byte for byte.
std::map<std::string, std::vector<std::byte>> all_bytes(Communicator& tp, const Form& form, const Sizes& z) {
  TestRank rank(std::size_t{1} << 28);
  ShardedRank r(rank.lane(), tp, tp, form);
  const std::int64_t inside = form.sequence_parallel ? tp.size() * z.s : z.s;
  std::map<std::string, std::vector<std::byte>> all;
  const auto run = [&](const std::string& name, const nn::Linear& linear, const Tensor& x, const Tensor& dy) {
    Microbatch& mb = r.begin();
    const Tensor y = linear.forward(r.lane(), x, mb);
    all[name + " y"] = bytes_of_tensor(y);
    all[name + " dx"] = bytes_of_tensor(nn::input_gradient(r.lane(), linear, dy, mb));
    EXPECT_TRUE(mb.saved.empty() && mb.later.empty());
  };
  const Shape outside{inside, z.b, z.in}, wide{inside, z.b, z.out};
  const auto column = r.column({{"column", z.out}}, z.in, true);
  const auto row = r.row("row", z.in, z.out);
  run("column", *column, r.part(outside, r.outside(), 1), r.part(wide, Cut::kColumns, 2));
  run("row", *row, r.part(wide, Cut::kColumns, 3), r.part(outside, r.outside(), 4));
  for (const auto& p : r.params().all()) all[p->name() + " gradient"] = bytes_of_tensor(p->main_grad());
  return all;
}

TEST(OverlappedLinear, SameBitsAsThePlainForm) {
  // s that chunks do not divide; one row; fewer rows than chunks; sizes past a tile of the products.
  const Sizes small[] = {{7, 3, 5, 12}, {1, 1, 3, 12}, {5, 1, 33, 36}, {2, 5, 64, 24}};
  const Sizes large = {45, 3, 130, 660};
  for (const int ranks : {1, 2, 3, 4}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kF16}) {
      for (const bool sequence_parallel : {false, true}) {
        std::vector<Sizes> sizes(std::begin(small), std::end(small));
        if (dtype == DType::kBF16 || (dtype == DType::kF32 && ranks == 3)) sizes.push_back(large);
        for (const Sizes& z : sizes) {
          run_local_ranks({.ranks = ranks}, [&](Communicator& tp) {
            const auto plain = all_bytes(tp, {sequence_parallel, 0, dtype, 1}, z);
            for (const int chunks : {2, 3, 100}) {
              for (const auto& [name, bytes] : all_bytes(tp, {sequence_parallel, chunks, dtype, 1}, z)) {
                EXPECT_TRUE(bytes == plain.at(name))
                    << name << ": tp " << ranks << ", " << name_of(dtype) << ", sequence parallel "
                    << sequence_parallel << ", " << chunks << " chunks, s " << z.s << " b " << z.b;
              }
            }
          });
        }
      }
    }
  }
}

// Notes for every operation how many allocations its rank made between its start and its wait: each matrix
// product makes one.
class WatchingCommunicator final : public PassingCommunicator {
 public:
  using PassingCommunicator::PassingCommunicator;
  struct Seen {
    std::string call;
    std::size_t started = 0, under = 0;  // arena allocations so far; between start and wait
  };
  std::vector<Seen> seen;

  Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp op) override {
    return watch(lane, "all_reduce", to_.all_reduce(lane, x, op), x);
  }
  Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) override {
    return watch(lane, "all_gather", to_.all_gather_into(lane, shard, full), full);
  }
  Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) override {
    return watch(lane, "reduce_scatter", to_.reduce_scatter_into(lane, full, shard), shard);
  }

 private:
  class Watched final : public Operation {
   public:
    Watched(WatchingCommunicator& by, std::size_t index, Async<Tensor> running)
        : by_(by), index_(index), running_(std::move(running)) {}
    void wait(Lane& lane) override {
      running_.wait(lane);
      Seen& own = by_.seen[index_];
      own.under = lane.arena.allocations() - own.started;
    }
    void cancel() noexcept override { running_ = Async<Tensor>(); }
    void dropped() noexcept override { running_ = Async<Tensor>(); }

   private:
    WatchingCommunicator& by_;
    std::size_t index_;
    Async<Tensor> running_;
  };
  Async<Tensor> watch(Lane& lane, const char* call, Async<Tensor> running, const Tensor& result) {
    seen.push_back({call, lane.arena.allocations(), 0});
    return {result, std::make_unique<Watched>(*this, seen.size() - 1, std::move(running))};
  }
};

// "all_gather - gemm" per operation: whether products ran under it.
std::vector<std::string> hidden(const WatchingCommunicator& tp) {
  std::vector<std::string> all;
  for (const auto& s : tp.seen) all.push_back(s.call + (s.under > 0 ? " hidden" : " waited for"));
  return all;
}

using Calls = std::vector<std::string>;
constexpr int kChunks = 3;

// What one forward, and one backward with its weight gradient, do on a rank of two.
std::pair<Calls, Calls> calls_of(bool row, bool sequence_parallel, int chunks) {
  std::pair<Calls, Calls> calls;
  run_local_ranks({.ranks = 2}, [&](Communicator& world) {
    TestRank rank;
    WatchingCommunicator tp(world);
    ShardedRank r(rank.lane(), tp, world, {sequence_parallel, chunks, DType::kF32, 1});
    const auto linear = row ? r.row("w", 6, 10) : r.column({{"w", 10}}, 6, false);
    const Tensor outside = r.part({12, 2, 6}, r.outside(), 1), inside = r.part({12, 2, 10}, Cut::kColumns, 2);
    Microbatch& mb = r.begin();
    linear->forward(r.lane(), row ? inside : outside, mb);
    const Calls forward = hidden(tp);
    tp.seen.clear();
    nn::input_gradient(r.lane(), *linear, row ? outside : inside, mb);
    if (world.rank() == 0) calls = {forward, hidden(tp)};
  });
  return calls;
}

TEST(OverlappedLinear, CommunicationIsOpenWhileProductsRun) {
  const std::string gather = "all_gather", scatter = "reduce_scatter", reduce = "all_reduce";
  const std::string hid = " hidden", waited = " waited for";
  // Sequence parallel: of C chunks, C − 1 are hidden, in backward all sums are.
  EXPECT_EQ(calls_of(false, true, kChunks),
            std::pair(Calls({gather + waited, gather + hid, gather + hid}),
                      Calls({gather + hid, scatter + hid, scatter + hid, scatter + hid})));
  EXPECT_EQ(calls_of(true, true, kChunks), std::pair(Calls({scatter + hid, scatter + hid, scatter + waited}),
                                                     Calls({gather + waited, gather + hid, gather + hid})));
  EXPECT_EQ(calls_of(false, false, kChunks),
            std::pair(Calls(), Calls({reduce + hid, reduce + hid, reduce + hid})));
  EXPECT_EQ(calls_of(true, false, kChunks),
            std::pair(Calls({reduce + hid, reduce + hid, reduce + waited}), Calls()));
  // The plain forms, so that the test is known to tell them apart.
  EXPECT_EQ(calls_of(false, true, 0),
            std::pair(Calls({gather + waited}), Calls({scatter + hid, gather + waited})));
  EXPECT_EQ(calls_of(true, true, 0), std::pair(Calls({scatter + waited}), Calls({gather + waited})));
}

// A weight gradient that runs later gathers its input then: nothing but the shard is held until then.
TEST(OverlappedLinear, LateWeightGradientsKeepTheShard) {
  run_local_ranks({.ranks = 2}, [&](Communicator& world) {
    TestRank rank;
    WatchingCommunicator tp(world);
    ShardedRank r(rank.lane(), tp, world, {true, kChunks, DType::kF32, 1});
    const Param& w = r.param("w", {{"w", 10}}, 6, 0);
    const nn::SequenceParallelBorder whole(tp);
    const nn::ChunkedSequenceParallelBorder border(whole, kChunks);
    const nn::OverlappedColumnParallelLinear linear(border, w, nullptr, DrainPoint::kStage);
    Microbatch& mb = r.begin();
    mb.later = WeightGrads(DrainPoint::kStage);
    linear.forward(r.lane(), r.part({12, 2, 6}, Cut::kRows, 1), mb);
    tp.seen.clear();
    nn::input_gradient(r.lane(), linear, r.part({12, 2, 10}, Cut::kColumns, 2), mb);
    EXPECT_EQ(tp.seen.size(), 3u);
    mb.later.drain(r.lane());
    EXPECT_EQ(tp.seen.size(), 4u);
    EXPECT_EQ(tp.seen.back().call, "all_gather");
  });
}

// The highest address that forward, and backward with its weight gradient, reach on a planned rank of four.
std::pair<std::size_t, std::size_t> peak_bytes(bool row, bool sequence_parallel, int chunks) {
  const auto arena = Arena::meta();
  Workers workers(1);
  Lane lane{*arena, workers, {}};
  const auto tp = planned_communicator("tp", 1, 4);
  const nn::ReplicatedBorder replicated(*tp);
  const nn::SequenceParallelBorder cut(*tp);
  const nn::ChunkedReplicatedBorder chunked_replicated(replicated, std::max(chunks, 1));
  const nn::ChunkedSequenceParallelBorder chunked_cut(cut, std::max(chunks, 1));
  const nn::TensorParallelBorder& border =
      sequence_parallel ? static_cast<const nn::TensorParallelBorder&>(cut) : replicated;
  const nn::ChunkedBorder& chunked =
      sequence_parallel ? static_cast<const nn::ChunkedBorder&>(chunked_cut) : chunked_replicated;
  const std::int64_t in = row ? 1024 : 512, out = row ? 512 : 1024;
  Param w("w", {out, in}, {{"w", {out, in}, -1, 0, out, 0, {}}}, {.decay = true});
  w.bind(lane.alloc(DType::kF32, {out, in}, "w"), lane.alloc(DType::kF32, {out, in}, "dw"), nullptr);
  w.begin_step(1);
  std::unique_ptr<nn::Linear> linear;
  if (row && chunks > 0) linear = std::make_unique<nn::OverlappedRowParallelLinear>(chunked, w);
  if (row && chunks == 0) linear = std::make_unique<nn::RowParallelLinear>(border, w);
  if (!row && chunks > 0) linear = std::make_unique<nn::OverlappedColumnParallelLinear>(chunked, w, nullptr);
  if (!row && chunks == 0) linear = std::make_unique<nn::ColumnParallelLinear>(border, w, nullptr);
  const std::int64_t s = 256, outside = sequence_parallel ? s / 4 : s;
  Microbatch mb;
  Tensor x = lane.alloc(DType::kF32, {row ? s : outside, 2, in}, "x");
  Tensor y = linear->forward(lane, x, mb);
  const std::size_t forward = arena->high_water();
  y = Tensor();
  x = Tensor();
  const Tensor dy = lane.alloc(DType::kF32, {row ? outside : s, 2, out}, "dy");
  arena->reset_high_water();
  nn::input_gradient(lane, *linear, dy, mb);
  return {forward, arena->high_water()};
}

TEST(OverlappedLinear, TakesNoMoreMemoryThanThePlainForm) {
  for (const bool row : {false, true}) {
    for (const bool sequence_parallel : {false, true}) {
      const auto plain = peak_bytes(row, sequence_parallel, 0);
      for (const int chunks : {1, 2, 4, 8, 16}) {
        const auto overlapped = peak_bytes(row, sequence_parallel, chunks);
        EXPECT_LE(overlapped.first, plain.first) << "forward, row " << row << ", " << chunks << " chunks";
        EXPECT_LE(overlapped.second, plain.second) << "backward, row " << row << ", " << chunks << " chunks";
      }
    }
  }
}

TEST(OverlappedLinear, AFailureBetweenChunksEndsTheRun) {
  // A weight that does not fit: the product of the first chunk throws while gathers are open on both ranks.
  EXPECT_THROW(
      run_local_ranks({.ranks = 2, .timeout = std::chrono::seconds(20)},
                      [&](Communicator& tp) {
                        TestRank rank;
                        ShardedRank r(rank.lane(), tp, tp, {true, kChunks, DType::kF32, 1});
                        const auto linear = r.column({{"w", 10}}, 6, false);
                        Microbatch& mb = r.begin();
                        linear->forward(r.lane(), r.part({12, 2, 6}, Cut::kRows, 1), mb);
                        linear->backward(r.lane(), r.part({12, 2, 14}, Cut::kColumns, 2), mb).wait(r.lane());
                      }),
      Error);
}

TEST(WholeLinear, RefusesWhatDoesNotDivide) {
  const auto tp = planned_communicator("tp", 1, 4);
  const Tensor x = Tensor::borrow(nullptr, DType::kF32, {2, 3, 6});
  try {
    nn::own_columns(*tp, x);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'tp' of 4 ranks"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace weft
