#include "train/device_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weft {
namespace {

constexpr std::size_t kLargest = 6;  // items that are listed

double mib(std::size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

MemoryNeed need_of(const EngineOptions& options, const MemoryPlan& plan) {
  const std::size_t named = plan.weights + plan.gradients + plan.optimizer + plan.tables;
  MemoryNeed need{
      .arena = plan.arena,
      .items = {{"weights", plan.weights},
                {"gradients", plan.gradients},
                {"optimizer states", plan.optimizer},
                {"tables", plan.tables},
                {"activations and scratch at the peak", plan.arena - std::min(plan.arena, named)}},
      .fixes = {}};
  if (options.micro_batch > 1) {
    need.fixes.push_back(fmt::format("a --micro-batch-size below {}", options.micro_batch));
  }
  if (options.training) {
    if (options.recompute.kind == RecomputeSpec::Kind::kNone ||
        options.recompute.kind == RecomputeSpec::Kind::kSelective) {
      need.fixes.emplace_back("--recompute-granularity full");
    }
    if (options.layout.mesh.dp * options.layout.mesh.cp > 1 && !options.distributed_optimizer) {
      need.fixes.emplace_back("--use-distributed-optimizer");
    }
    if (options.dtype == DType::kF32 || options.dtype == DType::kF64) need.fixes.emplace_back("--bf16");
  } else if (options.dtype == DType::kF32 || options.dtype == DType::kF64) {
    need.fixes.emplace_back("--dtype bf16");
  }
  need.fixes.emplace_back(
      "more GPUs for a model (--tensor-model-parallel-size, --pipeline-model-parallel-size)");
  need.fixes.push_back(fmt::format("shorter sequences than {}", options.sequence_length));
  return need;
}

std::string out_of_memory_text(const MemoryNeed& need, int index, const GpuMemory& found) {
  std::vector<MemoryNeed::Item> items = need.items;
  std::stable_sort(items.begin(), items.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string text = fmt::format(
      "GPU {} has too little memory: this rank needs {:.1f} MiB in one piece and about {:.0f} MiB beside it "
      "(CUDA's context, kernels and handles), and {:.1f} of its {:.1f} MiB are free; the largest items "
      "(MiB):",
      index, mib(need.arena), mib(kBesideArena), mib(found.free), mib(found.total));
  for (std::size_t i = 0; i < std::min(items.size(), kLargest); ++i) {
    if (items[i].bytes > 0) text += fmt::format("\n  {:>12.1f}  {}", mib(items[i].bytes), items[i].name);
  }
  // What a context takes is no sign of others.
  if (const std::size_t used = found.total - std::min(found.total, found.free); used > 2 * kBesideArena) {
    text += fmt::format("\n{:.1f} MiB of the GPU are in use: nvidia-smi says by whom", mib(used));
  }
  return text + fmt::format("\nless is needed with {}", fmt::join(need.fixes, "; "));
}

std::string tight_memory_text(const MemoryNeed& need, int index, const GpuMemory& found) {
  if (need.arena > found.free || found.free - need.arena >= kBesideArena) return "";
  return fmt::format(
      "GPU {}: the {:.1f} MiB of this rank leave {:.1f} MiB of what is free for kernels and handles (with "
      "CUDA's context they take about {:.0f}): the run may end for want of memory",
      index, mib(need.arena), mib(found.free - need.arena), mib(kBesideArena));
}

}  // namespace weft
