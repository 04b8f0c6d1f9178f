// weft doctor: facts about this build and this machine.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "cli/commands.hpp"
#include "comm/mpi/mpi_launcher.hpp"
#include "core/check.hpp"
#include "core/gpu.hpp"
#include "train/rank_device.hpp"

namespace weft {
namespace {

// The value of "NAME : value" in a /proc file; empty when there is none.
std::string proc_field(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

std::string vector_extensions() {
#if defined(__x86_64__)
  std::string names;
  const auto add = [&](bool has, const char* name) {
    if (has) names += (names.empty() ? "" : " ") + std::string(name);
  };
  add(__builtin_cpu_supports("avx2") != 0, "avx2");
  add(__builtin_cpu_supports("fma") != 0, "fma");
  add(__builtin_cpu_supports("avx512f") != 0, "avx512f");
  add(__builtin_cpu_supports("avx512vnni") != 0, "avx512-vnni");
  add(__builtin_cpu_supports("avx512bf16") != 0, "avx512-bf16");
  return names.empty() ? "none beyond x86-64" : names;
#else
  return "not examined on this processor family";
#endif
}

std::string built_for() {
#if defined(__AVX512F__)
  return "x86-64-v4 (AVX-512)";
#elif defined(__AVX2__) && defined(__FMA__)
  return "x86-64-v3 (AVX2, FMA)";
#elif defined(__x86_64__)
  return "x86-64";
#else
  return "this processor family's baseline";
#endif
}

// GPUs that the driver shows, whether or not this build can use them.
std::vector<std::string> gpus_of_driver() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    const std::string model = proc_field((entry.path() / "information").c_str(), "Model");
    names.push_back(model.empty() ? entry.path().filename().string() : model);
  }
  return names;
}

class Report {
 public:
  void title(const char* text) { text_ += fmt::format("{}{}\n", text_.empty() ? "" : "\n", text); }
  void line(const char* name, const std::string& value) { text_ += fmt::format("  {:<20}{}\n", name, value); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void build_facts(Report& report) {
  report.title("build");
  report.line("weft", WEFT_VERSION);
#if defined(__clang__)
  report.line("compiler", "clang " __clang_version__);
#else
  report.line("compiler", "g++ " __VERSION__);
#endif
#if defined(__OPTIMIZE__)
  std::string kind = "optimised";
#else
  std::string kind = "not optimised (slow: configure with CMAKE_BUILD_TYPE=Release)";
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  kind += ", with sanitizers (slow)";
#endif
  report.line("kind", kind);
  report.line("instruction set", built_for());
  report.line("devices",
              built_with_cuda() ? fmt::format("cpu, cuda (for {})", built_architectures()) : "cpu");
  report.line("communicators", "local (ranks are threads of one process)");
  if (mpi_available()) report.line("", fmt::format("mpi (ranks are processes; {})", mpi_library()));
  if (built_with_cuda()) report.line("", "nccl (between GPUs)");
}

void machine_facts(Report& report) {
  report.title("machine");
  const std::string model = proc_field("/proc/cpuinfo", "model name");
  report.line("processor", model.empty() ? "unknown" : model);
  report.line("vector extensions", vector_extensions());
  report.line("cores", std::to_string(std::thread::hardware_concurrency()));
  const auto gib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  report.line("memory", fmt::format("{:.1f} GiB, {:.1f} GiB free",
                                    gib(page * static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES))),
                                    gib(page * static_cast<std::uint64_t>(sysconf(_SC_AVPHYS_PAGES)))));
  for (const GpuLibrary& library : gpu_libraries()) {
    report.line(library.name.c_str(),
                fmt::format("{} ({}), program built with {}", version_text(library.found), library.file,
                            version_text(library.built)));
  }
  const Gpus usable = find_gpus();
  if (!usable.list.empty()) {
    report.line("gpus", std::to_string(usable.list.size()));
    for (const Gpu& gpu : usable.list) {
      report.line("", fmt::format("{}: compute capability {}.{}, {} multiprocessors, {:.1f} GiB", gpu.name,
                                  gpu.major, gpu.minor, gpu.multiprocessors, gib(gpu.memory)));
    }
    report.line("cuda", fmt::format("driver for {}, program built with {}", usable.driver, usable.runtime));
    return;
  }
  const std::vector<std::string> found = gpus_of_driver();
  report.line("gpus", found.empty() ? "none" : std::to_string(found.size()));
  for (const std::string& gpu : found) report.line("", gpu);
}

// What does not work here, and what it would take.
void missing(Report& report) {
  report.title("missing");
  if (const Gpus usable = find_gpus(); usable.list.empty()) report.line("--device cuda", usable.why_none);
  for (const GpuLibrary& library : gpu_libraries()) {
    if (const std::string problem = problem_of(library); !problem.empty())
      report.line("--device cuda", problem);
  }
  if (!mpi_available()) {
    report.line(
        "--launcher mpi",
        "this build has no MPI: install libopenmpi-dev and openmpi-bin (or libmpich-dev and mpich) and "
        "configure again");
  }
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) {
    report.line("this machine", "lacks AVX2 or FMA, which this build needs");
  }
#endif
}

}  // namespace

int run_doctor(Args args) {
  OptionSet options("weft doctor", "What this build and this machine offer, and what is missing for what.");
  if (answered(options, args)) return 0;
  Report report;
  build_facts(report);
  machine_facts(report);
  missing(report);
  print(report.text());
  return 0;
}

}  // namespace weft
