// What a rank needs of its GPU's memory, by name, and what is said where that is not there.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/gpu.hpp"
#include "train/plan.hpp"

namespace weft {

// Of each rank beside its arena: CUDA's context, kernels and library handles (measured on an H200 with CUDA
// 13.0).
inline constexpr std::size_t kBesideArena = std::size_t{540} << 20;

struct MemoryNeed {
  struct Item {
    std::string name;
    std::size_t bytes;
  };
  std::size_t arena = 0;           // in one piece
  std::vector<Item> items;         // the parts of it that have a name
  std::vector<std::string> fixes;  // what makes it smaller, best first
};
// Of a training step or a scoring run.
MemoryNeed need_of(const EngineOptions& options, const MemoryPlan& plan);

// The need with its largest items, what GPU `index` has, and the fixes.
std::string out_of_memory_text(const MemoryNeed& need, int index, const GpuMemory& found);
// Where the arena fits into what is free, but little is left for what lies beside it; empty: enough is.
std::string tight_memory_text(const MemoryNeed& need, int index, const GpuMemory& found);

}  // namespace weft
