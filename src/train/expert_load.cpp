#include "train/expert_load.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "nn/moe/balance.hpp"
#include "ops/elementwise.hpp"

namespace weft {

std::vector<ExpertLoad> expert_loads(const std::vector<double>& sums, std::int64_t experts,
                                     double loss_scale) {
  const std::int64_t columns = nn::RouterStatistics::columns(experts);
  std::vector<ExpertLoad> loads;
  for (std::size_t row = 0; row * static_cast<std::size_t>(columns) < sums.size(); ++row) {
    const auto first = sums.begin() + static_cast<std::int64_t>(row) * columns;
    ExpertLoad load{.layer = static_cast<std::int64_t>(row),
                    .chosen = {first, first + experts},
                    .kept = {first + experts, first + 2 * experts},
                    .aux_loss = first[2 * experts] * loss_scale,
                    .z_loss = first[2 * experts + 1] * loss_scale};
    if (std::accumulate(load.chosen.begin(), load.chosen.end(), 0.0) > 0) loads.push_back(std::move(load));
  }
  return loads;
}

std::optional<ExpertMetrics> expert_metrics(const std::vector<ExpertLoad>& loads) {
  if (loads.empty()) return std::nullopt;
  ExpertMetrics m;
  double chosen = 0, kept = 0;
  const auto layers = static_cast<double>(loads.size());
  for (const ExpertLoad& load : loads) {
    const double sum = std::accumulate(load.chosen.begin(), load.chosen.end(), 0.0);
    const auto [least, most] = std::minmax_element(load.chosen.begin(), load.chosen.end());
    m.layers.push_back({.layer = load.layer,
                        .min = *least,
                        .max = *most,
                        .mean = sum / static_cast<double>(load.chosen.size()),
                        .dead = std::count(load.chosen.begin(), load.chosen.end(), 0.0)});
    m.aux_loss += load.aux_loss / layers;
    m.z_loss += load.z_loss / layers;
    chosen += sum;
    kept += std::accumulate(load.kept.begin(), load.kept.end(), 0.0);
  }
  m.drop_rate = 1 - kept / chosen;
  return m;
}

void move_expert_biases(Lane& lane, const ParamSet& params, const std::vector<ExpertLoad>& loads,
                        double rate) {
  for (const ExpertLoad& load : loads) {
    const Param* param = params.find(fmt::format("decoder.layers.{}.mlp.router.expert_bias", load.layer));
    if (param == nullptr) continue;  // another stage's
    const double mean = std::accumulate(load.chosen.begin(), load.chosen.end(), 0.0) /
                        static_cast<double>(load.chosen.size());
    const auto move = [&]<class T>(std::vector<T> bias) {
      for (std::size_t e = 0; e < bias.size(); ++e) {
        if (load.chosen[e] == mean) continue;
        bias[e] += static_cast<T>(load.chosen[e] < mean ? rate : -rate);
      }
      ops::from_host(lane, bias, param->weight());
    };
    if (param->weight().dtype() == DType::kF64) {
      move(ops::to_host<double>(lane, param->weight()));
    } else {
      move(ops::to_host<float>(lane, param->weight()));
    }
  }
}

}  // namespace weft
