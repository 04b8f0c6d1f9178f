// What the routers of a step have seen: how busy experts are, and what follows from it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/lane.hpp"
#include "nn/param.hpp"
#include "train/metrics.hpp"

namespace weft {

// Of one layer's experts in one step, over the global batch.
struct ExpertLoad {
  std::int64_t layer = 0;
  std::vector<double> chosen;       // choices that fell on each expert
  std::vector<double> kept;         // those it took: less where capacity is bounded
  double aux_loss = 0, z_loss = 0;  // without coefficients, weighted as the losses of microbatches are
};

// From sums over all ranks, [layers, nn::RouterStatistics::columns] by rows; layers without experts, whose
// rows are zeros, are left out. `loss_scale`: what the losses are to be multiplied by.
std::vector<ExpertLoad> expert_loads(const std::vector<double>& sums, std::int64_t experts,
                                     double loss_scale);

// Biases of routers of this rank (LogicalTensor::state) a step of `rate` up where an expert was chosen less
// often than the mean, and down where more often (Wang et al. 2024; SEMANTICS 1.9).
void move_expert_biases(Lane& lane, const ParamSet& params, const std::vector<ExpertLoad>& loads,
                        double rate);

// What is written of them; none without experts.
std::optional<ExpertMetrics> expert_metrics(const std::vector<ExpertLoad>& loads);

}  // namespace weft
