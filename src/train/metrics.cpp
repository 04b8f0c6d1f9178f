#include "train/metrics.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/check.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

std::string number(double x) {
  return std::isfinite(x) ? fmt::format("{:.9g}", x) : "null";
}

double number_of(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return std::numeric_limits<double>::quiet_NaN();
  return it->get<double>();
}

std::optional<double> optional_number_of(const nlohmann::json& object, const char* key) {
  const double x = number_of(object, key);
  return std::isnan(x) ? std::nullopt : std::optional<double>(x);
}

StepMetrics parse(std::string_view line, const std::filesystem::path& path, std::size_t line_number) {
  try {
    const nlohmann::json object = nlohmann::json::parse(line);
    StepMetrics m;
    m.iteration = object.at("iteration").get<std::int64_t>();
    m.lm_loss = number_of(object, "lm_loss");
    m.grad_norm = number_of(object, "grad_norm");
    m.lr = number_of(object, "lr");
    m.loss_scale = number_of(object, "loss_scale");
    m.skipped = object.value("skipped", false);
    m.tokens = object.value("tokens", std::int64_t{0});
    m.consumed_samples = object.value("consumed_samples", std::int64_t{0});
    m.step_ms = number_of(object, "step_ms");
    m.tokens_per_second = number_of(object, "tokens_per_second");
    m.tflops_per_device = number_of(object, "tflops_per_device");
    m.mfu = optional_number_of(object, "mfu");
    m.validation_loss = optional_number_of(object, "validation_loss");
    return m;
  } catch (const nlohmann::json::exception& e) {
    config_fail("{}: line {} is not a line of metrics: {}", path.string(), line_number, e.what());
  }
}

// Calls visit(line, number from 1) for every whole line and returns what stands after the last.
template <class Visit>
std::string_view for_each_line(std::string_view text, const Visit& visit) {
  std::size_t line_number = 0, begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    visit(text.substr(begin, end - begin), ++line_number);
  }
  return text.substr(begin);
}

}  // namespace

std::string to_json(const ExpertMetrics& m) {
  std::string layers;
  std::int64_t dead = 0;
  for (const LayerExperts& l : m.layers) {
    layers += fmt::format(R"({}{{"layer": {}, "min": {}, "max": {}, "mean": {}, "dead": {}}})",
                          layers.empty() ? "" : ", ", l.layer, number(l.min), number(l.max), number(l.mean),
                          l.dead);
    dead += l.dead;
  }
  return fmt::format(
      R"("aux_loss": {}, "z_loss": {}, "tokens_per_expert": [{}], "dead_experts": {}, "drop_rate": {})",
      number(m.aux_loss), number(m.z_loss), layers, dead, number(m.drop_rate));
}

std::string to_json(const StepMetrics& m) {
  std::string line = fmt::format(
      R"({{"iteration": {}, "lm_loss": {}, "grad_norm": {}, "lr": {}, "loss_scale": {}, "skipped": {}, "tokens": {}, )"
      R"("consumed_samples": {}, "step_ms": {}, "tokens_per_second": {}, "tflops_per_device": {}, "mfu": {})",
      m.iteration, number(m.lm_loss), number(m.grad_norm), number(m.lr), number(m.loss_scale), m.skipped,
      m.tokens, m.consumed_samples, number(m.step_ms), number(m.tokens_per_second),
      number(m.tflops_per_device), m.mfu ? number(*m.mfu) : "null");
  if (m.validation_loss) line += fmt::format(R"(, "validation_loss": {})", number(*m.validation_loss));
  if (m.experts) line += ", " + to_json(*m.experts);
  return line + "}";
}

namespace {

// The lines of an existing file up to an iteration. Only metrics may be cut or added to.
std::string kept_lines(const std::filesystem::path& path, const std::string& text, std::int64_t iteration) {
  std::string kept;
  const std::string_view rest = for_each_line(text, [&](std::string_view line, std::size_t line_number) {
    if (parse(line, path, line_number).iteration <= iteration) kept.append(line).append("\n");
  });
  constexpr std::string_view kStart = "{\"iteration\": ";
  if (rest.substr(0, kStart.size()) != kStart.substr(0, rest.size())) {
    config_fail("--metrics {}: the file exists and does not hold metrics; name another, or remove it",
                path.string());
  }
  return kept;
}

}  // namespace

void check_metrics_file(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  const auto refuse = [&](int code) {
    config_fail("--metrics {}: cannot be opened for writing: {}", path.string(), std::strerror(code));
  };
  if (path.extension() == ".svg") {
    config_fail("--metrics {}: the loss curve is written there; name a .jsonl file", path.string());
  }
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) refuse(EISDIR);
  if (fs::exists(path, ignored)) {
    if (::access(path.c_str(), W_OK) != 0) refuse(errno);
    if (fs::is_regular_file(path, ignored)) kept_lines(path, read_file(path), 0);
    return;
  }
  fs::path folder = path.parent_path();  // the nearest that exists: those below will be made
  while (!folder.empty() && !fs::exists(folder, ignored)) folder = folder.parent_path();
  if (folder.empty()) folder = ".";
  if (!fs::is_directory(folder, ignored)) refuse(ENOTDIR);
  if (::access(folder.c_str(), W_OK) != 0) refuse(errno);
}

MetricsWriter::MetricsWriter(std::filesystem::path path, std::int64_t resumed_iteration)
    : path_(std::move(path)) {
  std::error_code error;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), error);
  if (std::filesystem::is_regular_file(path_, error)) {
    const std::string text = read_file(path_);
    const std::string kept = kept_lines(path_, text, resumed_iteration);
    if (kept.size() != text.size()) write_file(path_, kept);
  }
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    config_fail("--metrics {}: cannot be opened for writing: {}", path_.string(), std::strerror(errno));
  }
}

MetricsWriter::~MetricsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MetricsWriter::write(const StepMetrics& metrics) {
  const std::string line = to_json(metrics) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(descriptor_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      fail("{}: cannot write the metrics of iteration {} ({} of {} bytes written): {}", path_.string(),
           metrics.iteration, done, line.size(), std::strerror(errno));
    }
    done += static_cast<std::size_t>(n);
  }
}

std::vector<StepMetrics> read_metrics(const std::filesystem::path& path) {
  std::vector<StepMetrics> all;
  for_each_line(read_file(path), [&](std::string_view line, std::size_t line_number) {
    all.push_back(parse(line, path, line_number));
  });
  return all;
}

}  // namespace weft
