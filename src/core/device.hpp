// Where memory lives and code runs. Meta tensors have shapes and addresses but no bytes: the planner runs the
// real code on them and reads the arena's peak.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

enum class DeviceKind : std::uint8_t { kCpu, kCuda, kMeta };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

constexpr std::string_view name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kMeta:
      return "meta";
  }
  return "?";
}

}  // namespace weft
