#include "optim/batch_rampup.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace weft {

std::int64_t BatchRampup::batch_size(std::int64_t consumed) const {
  if (!ramps() || consumed > samples) return global_batch_size;
  // Divided as Megatron does, in floating point, so that the borders fall on the same sample.
  const std::int64_t increments = (global_batch_size - start) / increment;
  const double samples_per_increment = static_cast<double>(samples) / static_cast<double>(increments);
  const auto steps = static_cast<std::int64_t>(static_cast<double>(consumed) / samples_per_increment);
  return std::min(start + steps * increment, global_batch_size);
}

std::int64_t BatchRampup::iterations(std::int64_t budget) const {
  std::int64_t consumed = 0, count = 0;
  if (ramps()) {
    while (consumed <= samples) {
      const std::int64_t size = batch_size(consumed);
      if (consumed + size > budget) return count;
      consumed += size;
      ++count;
    }
  }
  return count + (budget - consumed) / global_batch_size;
}

std::vector<std::string> problems_of(const BatchRampup& rampup, std::int64_t unit) {
  std::vector<std::string> problems;
  if (rampup.start == 0 && rampup.increment == 0 && rampup.samples == 0) return problems;
  const std::string option =
      fmt::format("--rampup-batch-size {} {} {}", rampup.start, rampup.increment, rampup.samples);
  if (rampup.start <= 0 || rampup.increment <= 0 || rampup.samples < 0) {
    problems.push_back(fmt::format("{}: start and increment must be at least 1, samples at least 0", option));
    return problems;
  }
  if (rampup.start > rampup.global_batch_size) {
    problems.push_back(
        fmt::format("{}: the start is larger than --global-batch-size {}", option, rampup.global_batch_size));
  } else if ((rampup.global_batch_size - rampup.start) % rampup.increment != 0) {
    problems.push_back(fmt::format("{}: steps of {} from {} do not meet --global-batch-size {}", option,
                                   rampup.increment, rampup.start, rampup.global_batch_size));
  }
  for (const auto& [what, value] :
       {std::pair{"start", rampup.start}, std::pair{"increment", rampup.increment}}) {
    if (value % unit != 0) {
      problems.push_back(
          fmt::format("{}: {} {} does not divide by --micro-batch-size times the data-parallel ranks, {}",
                      option, what, value, unit));
    }
  }
  return problems;
}

}  // namespace weft
