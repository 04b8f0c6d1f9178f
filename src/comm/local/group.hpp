// Group: the thread ranks of one communicator. Each rank joins its calls to exchanges, in order; the one who
// completes an exchange runs it there and then (with a link model the group's own thread does), the others
// sleep until it is done.
//
// An exchange holds views, never handles: its memory belongs to the ranks that wait for it. A rank may take
// its memory away only after await() or leave() has returned; both wait for a run that is under way.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/local/exchange.hpp"
#include "comm/local/world.hpp"

namespace weft::local {

class Group {
 public:
  // `ranks`: ranks of the world, in the order of this group.
  Group(std::shared_ptr<World> world, std::string name, std::vector<int> ranks);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  World& world() const { return *world_; }
  int world_rank(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  // Joins this rank's next collective. May run it, and then throws if the calls differ.
  std::shared_ptr<Exchange> join(int rank, Call call);
  // The next message from `sender` to `receiver`: both join, each when it gets there, and nobody else is
  // needed.
  std::shared_ptr<Exchange> join_send(int sender, int receiver, Call call);
  std::shared_ptr<Exchange> join_receive(int sender, int receiver, Call call);

  // Returns when the exchange is done. Throws Aborted when the run has failed, Error on a timeout.
  void await(int rank, Exchange& exchange);
  // The rank will not use the exchange.
  void leave(Exchange& exchange) noexcept;

  // "group 'dp' (ranks 0 2 4): all_reduce(F32 [4], sum) #12"
  std::string describe(const Exchange& exchange, const Call& call) const;
  void wake();

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Exchanges that lack a participant, and each participant's next number. Collectives have one queue;
  // messages have one per (sender, receiver).
  struct Queue {
    std::vector<int> participants;
    std::vector<std::uint64_t> next;
    std::map<std::uint64_t, std::shared_ptr<Exchange>> open;
    std::chrono::steady_clock::time_point link_free{};  // when a queued link has done what came before
  };

  Queue& message_queue(int sender, int receiver);
  std::shared_ptr<Exchange> join(Lock& lock, Queue& queue, std::size_t participant, Call call);
  // Runs a complete exchange; on a mismatch the run has failed, and its Error is thrown.
  void run(Exchange& exchange);
  void split(Exchange& exchange);
  Error mismatch_error(const Exchange& exchange, const Mismatch& mismatch) const;
  void work();
  std::chrono::nanoseconds link_time(const Exchange& exchange) const;
  void leave(Lock& lock, Exchange& exchange);
  // The ranks (of the world) that have not joined.
  std::vector<int> absent(const Exchange& exchange) const;
  Error absent_error(const Exchange& exchange, int rank, const std::string& why) const;

  const std::shared_ptr<World> world_;
  const std::string name_;
  const std::vector<int> ranks_;

  std::mutex mutex_;  // guards what follows, and the state of every exchange
  std::condition_variable changed_;
  Queue collectives_;
  std::map<std::pair<int, int>, Queue> messages_;

  // With a link model: exchanges to run, in the order they were completed.
  std::deque<std::shared_ptr<Exchange>> ready_;
  std::condition_variable ready_changed_;
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace weft::local
