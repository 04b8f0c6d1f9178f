// Arena: one reservation of memory, taken before the first step, from which every tensor of a rank comes.
// Pieces are placed at the lowest address that fits and join their free neighbours when released, so the
// addresses of a step depend only on the order of its allocations: a run on meta memory finds the exact size
// that the real run needs, and every steady-state step uses the same addresses (a CUDA graph may hold them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/tensor.hpp"

namespace weft {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;

  // Host memory of this many bytes (mapped, touched only as it is used).
  static std::unique_ptr<Arena> host(std::size_t bytes);
  // No memory: counts. Its high_water() is the capacity a real arena of the device that it stands for needs
  // for the same calls.
  static std::unique_ptr<Arena> meta(DeviceKind stands_for = DeviceKind::kCpu);
  // Memory on any device. The caller owns it, or gives it away with `release`, which the destructor calls.
  Arena(Device device, std::byte* base, std::size_t bytes, std::function<void()> release = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Uninitialised. `what` (a literal) names the tensor in reports of the largest items. When it does not fit:
  // an Error that says the sizes and the largest live items.
  Tensor alloc(DType dtype, const Shape& shape, const char* what);

  Device device() const;
  // device().kind; of meta memory the kind that it stands for.
  DeviceKind target() const;
  std::size_t capacity() const;
  std::size_t in_use() const;
  // End of the highest piece ever placed.
  std::size_t high_water() const;
  // Sets high_water() to the end of the highest live piece.
  void reset_high_water();
  // Bytes of a host() arena whose pages have been touched; 0 for other memory.
  std::size_t touched() const;
  // Calls of alloc() since construction.
  std::size_t allocations() const;

  // Of which memory is free: with the same value, the same calls of alloc() give the same addresses.
  std::uint64_t state_hash() const;

  struct Item {
    const char* what;
    std::size_t bytes;  // all live pieces of this name
    std::size_t count;
  };
  // Live pieces grouped by name, largest first.
  std::vector<Item> largest(std::size_t count) const;

 private:
  friend void detail::retain(detail::Block*);
  friend void detail::release(detail::Block*);
  friend struct detail::Block;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft
