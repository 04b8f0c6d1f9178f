// The thread ranks of one run: whether it has failed, and what each rank did last.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/local/launcher.hpp"

namespace weft::local {

class Group;

class World {
 public:
  explicit World(const LocalOptions& options);

  const LocalOptions& options() const { return options_; }

  // The first failure of the run; later ones are its consequences and are dropped. Every wait ends with
  // Aborted. Must be called without a group's lock.
  void fail(int rank, const Error& error) noexcept;
  // This rank leaves by an exception whose text is not known yet: the others must go, and fail() will follow.
  // `what` is reported if it does not (the exception was handled on the way).
  void leave(int rank, const std::string& what) noexcept;
  // This rank's body has returned: nobody needs to wait for it any longer.
  void finish(int rank) noexcept;
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  bool finished(int rank) const {
    return finished_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  }
  [[noreturn]] static void throw_aborted();
  // Throws the first failure, its rank named, if there is one.
  void rethrow() const;

  // The last operation each rank has started, for the report of a timeout.
  void note(int rank, const std::string& group, const char* call, std::uint64_t sequence);
  void note_waiting(int rank, bool waiting);
  std::string last_calls(const std::vector<int>& ranks);

  // Groups whose waiters must be woken when the run ends. A group takes itself out before it goes.
  void enroll(Group* group);
  void withdraw(Group* group);

 private:
  struct Failure {
    int rank;
    bool config;
    std::vector<std::string> problems;
  };
  struct LastCall {
    std::mutex mutex;
    std::string group;
    const char* call = nullptr;
    std::uint64_t sequence = 0;
    bool waiting = false;
  };
  void wake();

  LocalOptions options_;
  std::atomic<bool> aborted_{false};
  std::deque<std::atomic<bool>> finished_;
  std::deque<LastCall> last_calls_;
  mutable std::mutex mutex_;  // guards what follows; taken before a group's lock, never after it
  std::optional<Failure> failure_, left_;
  std::vector<Group*> groups_;
};

}  // namespace weft::local
