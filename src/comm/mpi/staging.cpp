#include "comm/mpi/staging.hpp"

#include <algorithm>
#include <bit>
#include <new>

namespace weft::mpi {
namespace {

constexpr std::align_val_t kAlignment{64};

// Few sizes, so that a buffer that came back fits the next taker: powers of two, then whole MiB.
std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  return bytes <= kMiB ? std::bit_ceil(std::max(bytes, std::size_t{4096})) : (bytes + kMiB - 1) / kMiB * kMiB;
}

}  // namespace

Staging::~Staging() {
  for (const Piece& piece : free_) ::operator delete(piece.memory, kAlignment);
}

Staging::Buffer Staging::take(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  {
    const std::lock_guard lock(mutex_);
    const auto fits =
        std::find_if(free_.begin(), free_.end(), [size](const Piece& p) { return p.bytes == size; });
    if (fits != free_.end()) {
      std::byte* memory = fits->memory;
      *fits = free_.back();
      free_.pop_back();
      return Buffer(memory, Free{this, size});
    }
    free_.reserve(++made_);  // giving it back must not fail
  }
  return Buffer(static_cast<std::byte*>(::operator new(size, kAlignment)), Free{this, size});
}

void Staging::give_back(std::byte* memory, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back({memory, bytes});
}

}  // namespace weft::mpi
