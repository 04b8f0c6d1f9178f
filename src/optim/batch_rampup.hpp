// The global batch size as a function of consumed samples: --rampup-batch-size START INCREMENT SAMPLES, by
// Megatron's rule. The batch grows from START by INCREMENT at equal distances and has its full size after
// SAMPLES samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

struct BatchRampup {
  std::int64_t global_batch_size = 1;                  // the full size
  std::int64_t start = 0, increment = 0, samples = 0;  // zeros: full size from the first update on

  bool ramps() const { return increment > 0 && samples > 0 && start < global_batch_size; }
  // Size of the update that is made after `consumed` samples.
  std::int64_t batch_size(std::int64_t consumed) const;
  // Updates whose whole batches fit into `budget` samples (--train-samples); a rest that is too small is not
  // used.
  std::int64_t iterations(std::int64_t budget) const;
  bool operator==(const BatchRampup&) const = default;
};

// What is wrong with the numbers; every size on the way must divide by `unit`, micro batch size ·
// data-parallel ranks.
std::vector<std::string> problems_of(const BatchRampup& rampup, std::int64_t unit);

}  // namespace weft
