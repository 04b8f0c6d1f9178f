// By the clock: communication in chunks runs under the products. The products sleep, and the messages are
// small for the pretended link, so that a busy machine changes little. What real products hide on this
// machine: bench/overlap_bench.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/local/launcher.hpp"
#include "nn/chunked_border.hpp"
#include "ops/elementwise.hpp"
#include "support/rank.hpp"

namespace weft {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kChunks = 4;
constexpr std::int64_t kRows = 2048, kColumns = 256;  // inside; f32: 2 MiB, of which a rank sends 1 MiB
constexpr std::chrono::microseconds kLatency{100};
constexpr double kBytesPerSecond = 40e6;
constexpr Seconds kLinkTime{kLatency + Seconds{static_cast<double>(kRows * kColumns * 2) / kBytesPerSecond}};
constexpr Seconds kProduct{1.5 * kLinkTime};  // of all rows

enum class Pass { kSpread, kSpreadWhole, kCombine, kCombineReplicated };

double seconds_of(Pass pass, int chunks) {
  const LocalOptions options{.ranks = 2, .link = LinkModel{kLatency, kBytesPerSecond}};
  double seconds = 0;
  run_local_ranks(options, [&](Communicator& tp) {
    testing::TestRank rank;
    Lane& lane = rank.lane();
    const nn::ReplicatedBorder replicated(tp);
    const nn::SequenceParallelBorder cut(tp);
    const nn::ChunkedReplicatedBorder chunked_replicated(replicated, chunks);
    const nn::ChunkedSequenceParallelBorder chunked_cut(cut, chunks);
    const Tensor x = lane.alloc(DType::kF32, {kRows / 2, kColumns}, "test");
    ops::fill(lane, x, 1);
    const auto product = [](const nn::Rows& inside, const Tensor&) {
      std::this_thread::sleep_for(kProduct * static_cast<double>(inside.count) / static_cast<double>(kRows));
    };
    tp.barrier(lane);
    const auto start = std::chrono::steady_clock::now();
    if (pass == Pass::kSpread) chunked_cut.spread_to(lane, x, product);
    if (pass == Pass::kSpreadWhole) chunked_cut.spread_whole_to(lane, x, product);
    if (pass == Pass::kCombine) chunked_cut.combine_from(lane, x.dtype(), x.shape(), product).wait(lane);
    if (pass == Pass::kCombineReplicated) {
      // An all-reduce sends as much as its tensor is large: half of the rows are as much as above.
      const auto half = [&](const nn::Rows& r, const Tensor& t) { product({r.begin, 2 * r.count}, t); };
      chunked_replicated.combine_from(lane, x.dtype(), x.shape(), half).wait(lane);
    }
    if (tp.rank() == 0) seconds = Seconds(std::chrono::steady_clock::now() - start).count();
  });
  return seconds;
}

// Sleeping products and the link take no less than their time, whatever else the machine does: a run can be
// slower for many reasons, but fast only by overlap. So the best of many runs tells, and no chance can pass.
TEST(OverlapTiming, CommunicationRunsUnderTheProducts) {
  const double product = kProduct.count(), all = product + kLinkTime.count();
  for (const Pass pass : {Pass::kSpread, Pass::kSpreadWhole, Pass::kCombine, Pass::kCombineReplicated}) {
    EXPECT_GE(seconds_of(pass, 1), all) << "in one chunk nothing can be hidden";
    double best = 1e9;
    // 3 of 4 chunks can be hidden.
    const auto hidden = [&] { return 1 - (best - product) / (all - product); };
    for (int i = 0; i < 60 && hidden() < 0.5; ++i) best = std::min(best, seconds_of(pass, kChunks));
    EXPECT_GE(hidden(), 0.5) << "pass " << static_cast<int>(pass) << ": " << best << " s; one after another "
                             << all << " s, without communication " << product << " s";
  }
}

}  // namespace
}  // namespace weft
