// The numbers of every step, one JSON object a line: what --metrics writes and reports read back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace weft {

// How busy the experts of a layer were: choices that fell on one of them.
struct LayerExperts {
  std::int64_t layer = 0;
  double min = 0, max = 0, mean = 0;
  std::int64_t dead = 0;  // experts that nothing fell on
};
struct ExpertMetrics {
  double aux_loss = 0, z_loss = 0;  // means over layers, without coefficients
  double drop_rate = 0;             // choices that full experts left out, of all
  std::vector<LayerExperts> layers;
};

struct StepMetrics {
  std::int64_t iteration = 0;  // from 1
  double lm_loss = 0;          // mean over the target tokens of the global batch, before the update
  double grad_norm = 0;        // before clipping
  double lr = 0;
  double loss_scale = 1;
  bool skipped = false;  // not finite: nothing was updated
  std::int64_t tokens = 0;
  std::int64_t consumed_samples = 0;
  double step_ms = 0;
  double tokens_per_second = 0;
  double tflops_per_device = 0;
  std::optional<double> mfu;              // none: the device's peak is not known
  std::optional<double> validation_loss;  // only on steps that an evaluation follows
  std::optional<ExpertMetrics> experts;   // of models that have some
};

// One line without its end: 9 significant digits; NaN and infinity, which JSON cannot say, as null.
std::string to_json(const StepMetrics& metrics);

// Before a run: a ConfigError when a MetricsWriter of this path would fail. Makes and changes nothing.
void check_metrics_file(const std::filesystem::path& path);

class MetricsWriter {
 public:
  // Continues a run after `resumed_iteration` (0: a new one): lines of later iterations, which the run is
  // about to repeat, and a line cut short by a kill are dropped. Missing folders are made. ConfigError when
  // the file cannot be opened, or holds something that is not metrics.
  MetricsWriter(std::filesystem::path path, std::int64_t resumed_iteration);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // The line is in the file when this returns. Error naming the path and what the system said.
  void write(const StepMetrics& metrics);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// Every whole line of a file of metrics, in order; null numbers come back as NaN. ConfigError naming file and
// line when it cannot be read. A last line without its end (a killed run) is left out.
std::vector<StepMetrics> read_metrics(const std::filesystem::path& path);

}  // namespace weft
