// Rates: how fast a device is, as far as the time of a step follows from it. Measured by weft bench op
// --save-rates, kept in a small JSON file, read by weft plan.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/device.hpp"
#include "core/dtype.hpp"
#include "core/trace.hpp"

namespace weft {

// What a message takes: latency + the bytes that a rank sends / bandwidth. Bytes are counted as
// Communicator::bytes_sent() counts, so the bandwidth of reductions is what nccl-tests call that of the bus.
struct Link {
  double bytes_per_second = 0, latency = 0;  // latency in seconds
  double seconds(double bytes) const { return latency + bytes / bytes_per_second; }
};

struct Rates {
  std::string device;  // "NVIDIA H200"
  DeviceKind kind = DeviceKind::kCpu;
  DType dtype = DType::kF32;
  int threads = 0;           // of a rank, on CPUs
  double copy_rate = 0;      // bytes read and written a second by a large copy
  double product_rate = 0;   // floating-point operations a second of a large matrix product
  double peak = 0;           // the same as the maker states it, for MFU; 0: not known
  double per_operation = 0;  // seconds that an operation of nothing takes
  // Of an operation's floor (the larger of its bytes and products at the rates above), by family: how much of
  // its time that is. "other" is what all others have.
  std::map<std::string, double> efficiency;
  Link node, network;  // among ranks of one machine, and between machines
  std::int64_t ranks_per_node = 8;
  std::string source;  // "built in", or the file

  // Seconds of an operation. `head_size` is the model's: that of attention is another for each.
  double seconds(const OperationCost& cost, std::int64_t head_size) const;
  double floor_seconds(const OperationCost& cost) const;
  double efficiency_of(const std::string& family) const;
  // The link of a group of ranks of the world.
  template <class Ranks>
  const Link& link_among(const Ranks& ranks) const {
    for (const auto rank : ranks) {
      if (rank / ranks_per_node != *ranks.begin() / ranks_per_node) return network;
    }
    return node;
  }
};

// "gemm nt" of "gemm nt 512x64x64"; "attention/64"; else the operation's name.
std::string family_of(const OperationCost& cost, std::int64_t head_size);

// One H200 with bf16: figures of bench/RESULTS.md, and links as assumed.
Rates h200_rates();
// The links that stand in a file until someone measures them.
void assume_links(Rates& rates);
// Dense 16-bit products a second as the maker states them; 0: not known.
double peak_of(const std::string& device, DType dtype);

// The processor of this machine, or a GPU's name: what rates are filed under.
std::string device_name(DeviceKind kind);
// A folder of this user for what is measured once, "~/.cache/weft/" + name; empty where there is no home.
std::filesystem::path cache_folder(const std::string& name);
// cache_folder("rates") / DEVICE.json
std::filesystem::path rates_file(const std::string& device);

// Where --save-rates writes: `file`, or where that is empty rates_file(), whose folder it makes. ConfigError
// when write_rates could not: so it is known before anything is measured.
std::filesystem::path rates_target(const std::string& file, const std::string& device);
// One file holds a device's rates of each dtype: writing one leaves the others. ConfigError naming the file
// when what is there is not such a file, or is another device's.
void write_rates(const std::filesystem::path& path, const Rates& rates);
// ConfigError naming the file: it is missing or malformed, of another kind of device, or has nothing for this
// dtype.
Rates read_rates(const std::filesystem::path& path, DeviceKind kind, DType dtype);

// What a plan may go by: `file`; where that is empty the rates of this machine's device if they have been
// saved, else on CUDA the built-in ones. None: nothing is known. ConfigError as read_rates.
std::optional<Rates> find_rates(const std::string& file, DeviceKind kind, DType dtype);

}  // namespace weft
