// Host memory for what MPI cannot send or receive in place. Buffers come back to the pool and are used again,
// so a steady run takes nothing from the system.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::mpi {

class Staging {
 public:
  struct Free {
    Staging* home = nullptr;  // null: none
    std::size_t bytes = 0;
    void operator()(std::byte* memory) const noexcept { home->give_back(memory, bytes); }
  };
  using Buffer = std::unique_ptr<std::byte, Free>;

  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  Buffer take(std::size_t bytes);

 private:
  struct Piece {
    std::byte* memory;
    std::size_t bytes;
  };
  void give_back(std::byte* memory, std::size_t bytes) noexcept;

  std::mutex mutex_;
  std::vector<Piece> free_;
  std::size_t made_ = 0;
};

}  // namespace weft::mpi
