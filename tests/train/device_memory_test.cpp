#include "train/device_memory.hpp"

#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr std::size_t operator""_mib(unsigned long long n) {
  return static_cast<std::size_t>(n) << 20;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

MemoryPlan plan() {
  return {.weights = 1000_mib,
          .gradients = 2000_mib,
          .optimizer = 6000_mib,
          .tables = 1_mib,
          .arena = 99'001_mib};
}

EngineOptions engine() {
  EngineOptions o;
  o.device = DeviceKind::kCuda;
  o.dtype = DType::kBF16;
  o.micro_batch = 8;
  o.sequence_length = 4096;
  o.layout.mesh.dp = 4;
  return o;
}

TEST(DeviceMemory, ItemsAddUpToTheArena) {
  const MemoryNeed need = need_of(engine(), plan());
  std::size_t sum = 0;
  for (const MemoryNeed::Item& item : need.items) sum += item.bytes;
  EXPECT_EQ(sum, plan().arena);
  EXPECT_EQ(need.arena, plan().arena);
}

TEST(DeviceMemory, TheTextSaysNeedFreeItemsAndFixes) {
  const std::string text = out_of_memory_text(need_of(engine(), plan()), 3, {80'000_mib, 81'000_mib});
  for (const char* part :
       {"GPU 3", "99001.0 MiB", "540 MiB", "80000.0", "81000.0 MiB", "--micro-batch-size below 8",
        "--recompute-granularity full", "--use-distributed-optimizer", "4096"}) {
    EXPECT_TRUE(has(text, part)) << part << "\n" << text;
  }
  const std::vector<const char*> order = {"90000.0  activations", "6000.0  optimizer states",
                                          "2000.0  gradients", "1000.0  weights", "1.0  tables"};
  std::size_t at = 0;
  for (const char* line : order) {
    const std::size_t next = text.find(line, at);
    ASSERT_NE(next, std::string::npos) << line << "\n" << text;
    at = next;
  }
  EXPECT_FALSE(has(text, "--bf16")) << text;
  EXPECT_FALSE(has(text, "in use")) << text;  // no more than a context
  EXPECT_TRUE(has(out_of_memory_text(need_of(engine(), plan()), 0, {10'000_mib, 81'000_mib}),
                  "71000.0 MiB of the GPU are in use"));
}

TEST(DeviceMemory, OnlyFixesThatAreLeft) {
  EngineOptions o = engine();
  o.dtype = DType::kF32;
  o.micro_batch = 1;
  o.distributed_optimizer = true;
  o.recompute.kind = RecomputeSpec::Kind::kUniform;
  const std::string text = out_of_memory_text(need_of(o, plan()), 0, {1_mib, 2_mib});
  for (const char* part : {"--micro-batch-size", "--recompute", "--use-distributed"})
    EXPECT_FALSE(has(text, part)) << text;
  EXPECT_TRUE(has(text, "--bf16")) << text;
  o.training = false;  // weft score
  const std::string score = out_of_memory_text(need_of(o, plan()), 0, {1_mib, 2_mib});
  EXPECT_TRUE(has(score, "--dtype bf16")) << score;
  EXPECT_FALSE(has(score, "optimizer;")) << score;
}

TEST(DeviceMemory, LittleLeftIsSaidAndNotRefused) {
  const MemoryNeed need = need_of(engine(), plan());
  EXPECT_EQ(tight_memory_text(need, 0, {plan().arena + kBesideArena, 200'000_mib}), "");
  const std::string text = tight_memory_text(need, 0, {plan().arena + 100_mib, 200'000_mib});
  EXPECT_TRUE(has(text, "leave 100.0 MiB")) << text;
  EXPECT_TRUE(has(text, "540")) << text;
  EXPECT_EQ(tight_memory_text(need, 0, {plan().arena - 1, 200'000_mib}), "");  // refused
}

}  // namespace
}  // namespace weft
