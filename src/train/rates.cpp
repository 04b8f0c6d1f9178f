#include "train/rates.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.hpp"
#include "core/gpu.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "weft rates 1";

std::string dtype_key(DType dtype) {
  std::string name(name_of(dtype));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

Json json_of(const Link& link) {
  return {{"bytes_per_second", link.bytes_per_second}, {"latency_seconds", link.latency}};
}

// Reads one file, with its name in every error.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path) {
    try {
      all_ = Json::parse(read_file(path));
    } catch (const Json::exception& error) {
      config_fail("{} is not JSON ({}); weft bench op --save-rates {} writes a file of rates", path.string(),
                  error.what(), path.string());
    }
    if (!all_.is_object() || !all_.contains("format") || all_["format"] != kFormat) {
      config_fail("{} has no \"format\": \"{}\"; weft bench op --save-rates writes a file of rates",
                  path.string(), kFormat);
    }
  }

  Rates read(DeviceKind kind, DType dtype) const {
    Rates r{.device = device(), .kind = kind, .dtype = dtype, .source = path_.string()};
    const auto of = value<std::string>(all_, "kind");
    if (of != name_of(kind)) {
      config_fail(
          "{} holds the rates of {} (\"kind\": \"{}\"), and the plan is for --device {}; take that "
          "device's file, or measure it with weft bench op --device {} --save-rates",
          path_.string(), r.device, of, name_of(kind), name_of(kind));
    }
    const Json& links = object(all_, "links");
    r.node = link(object(links, "node"));
    r.network = link(object(links, "network"));
    r.ranks_per_node = count(links, "ranks_per_node", 1);
    const Json& by_dtype = rates();
    if (!by_dtype.contains(dtype_key(dtype))) {
      config_fail(
          "{} has no rates of {}; measure them with weft bench op --device {} --dtype {} --save-rates {}",
          path_.string(), dtype_key(dtype), name_of(kind), dtype == DType::kF32 ? "fp32" : "bf16",
          path_.string());
    }
    const Json& mine = object(by_dtype, dtype_key(dtype).c_str());
    r.threads = static_cast<int>(count(mine, "threads", 0));
    r.copy_rate = positive(mine, "copy_bytes_per_second");
    r.product_rate = positive(mine, "product_flops_per_second");
    r.peak = number(mine, "peak_flops_per_second");
    r.per_operation = number(mine, "seconds_per_operation");
    const Json& efficiency = object(mine, "efficiency");
    for (const auto& [family, share] : efficiency.items()) {
      r.efficiency[family] = positive(efficiency, family.c_str());
    }
    return r;
  }

  const Json& all() const { return all_; }
  // Whose rates it holds.
  std::string device() const { return value<std::string>(all_, "device"); }
  const Json& rates() const { return object(all_, "rates"); }

 private:
  template <class T>
  T value(const Json& from, const char* key) const {
    try {
      return from.at(key).get<T>();
    } catch (const Json::exception&) {
      config_fail("{}: \"{}\" is missing or not of its type; measure again with weft bench op --save-rates",
                  path_.string(), key);
    }
  }
  const Json& object(const Json& from, const char* key) const {
    if (!from.contains(key) || !from[key].is_object()) {
      config_fail("{}: \"{}\" is missing or no object; measure again with weft bench op --save-rates",
                  path_.string(), key);
    }
    return from[key];
  }
  double number(const Json& from, const char* key) const {
    const auto n = value<double>(from, key);
    if (!(n >= 0) || !std::isfinite(n)) config_fail("{}: \"{}\" is {}, below 0", path_.string(), key, n);
    return n;
  }
  double positive(const Json& from, const char* key) const {
    const double n = number(from, key);
    if (n == 0) config_fail("{}: \"{}\" is 0, and must be more", path_.string(), key);
    return n;
  }
  std::int64_t count(const Json& from, const char* key, std::int64_t low) const {
    constexpr double kMost = 1 << 30;
    const double n = number(from, key);
    if (n < static_cast<double>(low) || n > kMost || n != std::floor(n)) {
      config_fail("{}: \"{}\" is {}, and must be a whole number from {} to {}", path_.string(), key, n, low,
                  kMost);
    }
    return static_cast<std::int64_t>(n);
  }
  Link link(const Json& from) const {
    return {positive(from, "bytes_per_second"), number(from, "latency_seconds")};
  }

  std::filesystem::path path_;
  Json all_;
};

// What stands in the file that is to take the rates of this device; nothing where there is no file.
std::optional<Json> before_writing(const std::filesystem::path& path, const std::string& device) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  if (!std::filesystem::is_regular_file(path)) {
    config_fail("--save-rates {}: it is no ordinary file, and rates are added to those that a file holds",
                path.string());
  }
  const Reader reader(path);
  if (reader.device() != device) {
    config_fail("--save-rates {}: it holds the rates of {}, and these are of {}; give another file",
                path.string(), reader.device(), device);
  }
  reader.rates();
  return reader.all();  // with links that someone may have measured
}

}  // namespace

std::string family_of(const OperationCost& cost, std::int64_t head_size) {
  std::size_t end = cost.name.find(' ');
  if (end == std::string::npos) end = cost.name.size();
  std::string family = cost.name.substr(0, end);
  if (family == "gemm") return cost.name.substr(0, cost.name.find(' ', end + 1));
  if (family.starts_with("attention")) family += "/" + std::to_string(head_size);
  return family;
}

double Rates::efficiency_of(const std::string& family) const {
  if (const auto found = efficiency.find(family); found != efficiency.end()) return found->second;
  // Attention of a head size that was not measured: that of the nearest.
  const std::size_t slash = family.find('/');
  if (slash != std::string::npos) {
    const double size = std::strtod(family.c_str() + slash + 1, nullptr);
    double best = 0, distance = std::numeric_limits<double>::max();
    for (const auto& [name, share] : efficiency) {
      if (!name.starts_with(family.substr(0, slash + 1))) continue;
      const double apart = std::abs(std::log(std::strtod(name.c_str() + slash + 1, nullptr) / size));
      if (apart < distance) distance = apart, best = share;
    }
    if (best > 0) return best;
  }
  const auto other = efficiency.find("other");
  return other != efficiency.end() ? other->second : 1;
}

double Rates::floor_seconds(const OperationCost& cost) const {
  return std::max(cost.bytes / copy_rate, cost.flops / product_rate);
}

double Rates::seconds(const OperationCost& cost, std::int64_t head_size) const {
  return per_operation + floor_seconds(cost) / efficiency_of(family_of(cost, head_size));
}

void assume_links(Rates& r) {
  if (r.kind == DeviceKind::kCuda) {
    r.node = {300e9, 30e-6};    // NVLink
    r.network = {45e9, 40e-6};  // a 400 Gbit/s adapter for each GPU
    r.ranks_per_node = 8;
  } else {
    r.node = {r.copy_rate / 2, 20e-6};  // a message is copied through memory
    r.network = {3e9, 40e-6};           // 25 Gbit/s
    r.ranks_per_node = 64;
  }
}

double peak_of(const std::string& device, DType dtype) {
  if (bytes_of(dtype) != 2) return 0;
  for (const char* name : {"H200", "H100", "GH200"}) {
    if (device.find(name) == std::string::npos) continue;
    return device.find("PCIe") != std::string::npos ? 0 : 989.4e12;
  }
  return device.find("A100") != std::string::npos ? 312e12 : 0;
}

Rates h200_rates() {
  Rates r{.device = "NVIDIA H200",
          .kind = DeviceKind::kCuda,
          .dtype = DType::kBF16,
          .copy_rate = 4.28e12,
          .product_rate = 670e12,
          .per_operation = 3e-6,
          .source = "built in"};
  r.peak = peak_of(r.device, r.dtype);
  const auto of_products = [&](double flops) { return flops / r.product_rate; };
  r.efficiency = {{"gemm nt", 1},
                  {"gemm nn", 1},
                  {"gemm tn", 1},
                  {"attention/64", of_products(350e12)},
                  {"attention_backward/64", of_products(253e12)},
                  {"attention/128", of_products(580e12)},
                  {"attention_backward/128", of_products(480e12)},
                  {"norm", 0.84},
                  {"norm_backward", 0.71},
                  {"activation", 0.8},
                  {"activation_again", 0.85},
                  {"gated_activation", 0.9},
                  {"gated_activation_again", 0.9},
                  {"bias_gradient", 0.82},
                  {"bias_dropout_add", 0.75},
                  {"cross_entropy_fused", 0.6},
                  {"adamw", 0.93},
                  {"sums_of_squares", 1},
                  {"other", 0.7}};
  assume_links(r);
  return r;
}

std::string device_name(DeviceKind kind) {
  if (kind == DeviceKind::kCuda) {
    const Gpus gpus = find_gpus();
    return gpus.list.empty() ? "" : gpus.list.front().name;
  }
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

std::filesystem::path cache_folder(const std::string& name) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::filesystem::path(cache) / "weft" / name;
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return std::filesystem::path(home) / ".cache" / "weft" / name;
}

std::filesystem::path rates_file(const std::string& device) {
  const std::filesystem::path folder = cache_folder("rates");
  if (folder.empty() || device.empty()) return {};
  std::string name = device;
  std::replace(name.begin(), name.end(), '/', '-');
  return folder / (name + ".json");
}

std::filesystem::path rates_target(const std::string& file, const std::string& device) {
  std::filesystem::path path = file;
  if (file.empty()) {
    path = rates_file(device);
    if (path.empty()) config_fail("--save-rates: neither XDG_CACHE_HOME nor HOME says where; give it a FILE");
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) {
      config_fail("--save-rates: the folder {} cannot be made: {}; give it a FILE",
                  path.parent_path().string(), error.message());
    }
  }
  check_output("--save-rates", path);
  before_writing(path, device);
  return path;
}

void write_rates(const std::filesystem::path& path, const Rates& r) {
  Json all{
      {"format", kFormat},
      {"device", r.device},
      {"kind", name_of(r.kind)},
      {"links",
       {{"node", json_of(r.node)}, {"network", json_of(r.network)}, {"ranks_per_node", r.ranks_per_node}}},
      {"rates", Json::object()}};
  if (std::optional<Json> before = before_writing(path, r.device)) all = *std::move(before);
  all["rates"][dtype_key(r.dtype)] = {{"threads", r.threads},
                                      {"copy_bytes_per_second", r.copy_rate},
                                      {"product_flops_per_second", r.product_rate},
                                      {"peak_flops_per_second", r.peak},
                                      {"seconds_per_operation", r.per_operation},
                                      {"efficiency", r.efficiency}};
  write_file(path, all.dump(2) + "\n");
}

Rates read_rates(const std::filesystem::path& path, DeviceKind kind, DType dtype) {
  return Reader(path).read(kind, dtype);
}

std::optional<Rates> find_rates(const std::string& file, DeviceKind kind, DType dtype) {
  if (!file.empty()) return read_rates(file, kind, dtype);
  const std::filesystem::path saved = rates_file(device_name(kind));
  if (!saved.empty() && std::filesystem::exists(saved)) {
    const Reader reader(saved);
    const auto by_dtype = reader.all().find("rates");
    if (by_dtype != reader.all().end() && by_dtype->contains(dtype_key(dtype)))
      return reader.read(kind, dtype);
  }
  if (kind == DeviceKind::kCuda && dtype == DType::kBF16) return h200_rates();
  return std::nullopt;
}

}  // namespace weft
