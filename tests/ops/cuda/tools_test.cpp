// Times of a traced GPU: on the host's clock, one within another, on other streams than the compute stream.
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include "gpu.hpp"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;

class Tracing : public OnGpu {};

TEST_F(Tracing, TimesAreOfTheHostsClock) {
  DeviceTools& tools = *gpu().tools;
  const Tensor x = gpu().alloc(DType::kF32, {1 << 24}, "test");
  ops::fill(gpu(), x, 1);
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);

  const Clock::time_point before = Clock::now();
  tools.trace(true);
  {
    const TraceScope outer(&tools, "outer");
    for (int i = 0; i < 3; ++i) ops::fill(gpu(), x, i);
    const TraceScope beside(
        &tools, "beside", [] { return on_row(TraceRow::kGroup, "beside", 7); }, Stream{other});
  }
  const Clock::time_point seen = Clock::now();
  tools.add_traced(on_row(TraceRow::kGroup, "host"), seen, Clock::now());
  const std::vector<TracedOperation> all = tools.traced();
  const double length = std::chrono::duration<double, std::micro>(Clock::now() - before).count();
  tools.trace(false);
  cudaStreamDestroy(other);

  EXPECT_GE(tools.began(), before);
  EXPECT_LE(tools.began(), seen);
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[0].cost.name, "host");
  const TracedOperation& outer = all[1];
  EXPECT_EQ(outer.row, TraceRow::kSchedule);
  double last = outer.start;
  for (std::size_t i = 2; i < 5; ++i) {
    EXPECT_EQ(all[i].row, TraceRow::kCompute);
    EXPECT_GE(all[i].start, last);
    EXPECT_GT(all[i].end, all[i].start);
    EXPECT_LE(all[i].end, outer.end);
    EXPECT_NEAR(all[i].cost.bytes, 4.0 * (1 << 24), 1);
    last = all[i].end;
  }
  EXPECT_EQ(all[5].cost.bytes, 7);
  for (const TracedOperation& op : all) {
    EXPECT_GE(op.start, 0) << op.cost.name;
    EXPECT_LE(op.end, length) << op.cost.name;
  }
}

}  // namespace
}  // namespace weft::test
