// A training run's loss as one self-contained SVG: opens anywhere, in light and dark viewers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "train/metrics.hpp"

namespace weft {

struct LossCurve {
  struct Point {
    std::int64_t iteration;
    double value;
  };
  struct Baseline {
    std::string label;  // "unigram"
    double loss;
  };
  std::string title;     // "gpt, 10.6 M parameters, 400 steps of 16 x 256 tokens"
  std::string subtitle;  // may be empty
  std::vector<Point> train, validation, learning_rate;
  std::vector<Baseline> baselines;
};

// The points of every step that was not skipped; validation points where lines carry them.
LossCurve loss_curve(const std::vector<StepMetrics>& steps, std::string title);

// Points that are not finite are left out. Many points are drawn as the means of equal ranges of steps; the
// line is a centred mean over about 1/25 of the run.
std::string loss_curve_svg(const LossCurve& curve);
void write_loss_curve(const std::filesystem::path& path, const LossCurve& curve);

}  // namespace weft
