// Engine: the one thread of a process that talks to MPI. It starts the transfers of the rank's operations,
// tests them, and sleeps in between, so that communication goes on while the rank computes and no core is
// spent on waiting. It sees to the end of the run as well: deadlines, calls that differ, other ranks'
// failures.
//
// Everything is point-to-point: an operation's messages carry its sequence number as tag, on the group's own
// MPI communicator. Operations of one group may be in flight together and finish in any order.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/mpi_launcher.hpp"
#include "comm/mpi/staging.hpp"

namespace weft::mpi {

class Engine;

// Throws Error with MPI's text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

// The ranks of one communicator. `comm` belongs to the engine.
struct Group {
  std::string name;
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  std::vector<int> ranks;  // of the world, in the order of this group

  int size() const { return static_cast<int>(ranks.size()); }
  int world_rank(int r) const { return ranks[static_cast<std::size_t>(r)]; }
};

// What a message is within its operation.
enum class Part { kCall, kData, kResult, kMessageCall, kMessageData };

// One operation. Lives in the engine's thread from submit() until it is done; holds no tensors.
class Task {
 public:
  // `others`: ranks of the group that must join.
  Task(std::shared_ptr<const Group> group, std::uint64_t sequence, std::vector<int> others)
      : group_(std::move(group)), sequence_(sequence), others_(std::move(others)), joined_(others_.size()) {}
  virtual ~Task() = default;

  virtual void begin(Engine& engine) = 0;
  // A transfer is complete. The task is done when none is left after these have returned.
  virtual void received(Engine& engine, Part part, int peer, std::size_t bytes) = 0;
  virtual void sent(Engine&, Part, int /*peer*/) {}
  virtual void complete(Engine&) {}
  // One of many pieces of an operation that take memory while they are under way: of a group's, two at a time
  // are begun, in order.
  virtual bool is_piece() const { return false; }
  // Called over and over while the task is under way.
  virtual void look(std::chrono::steady_clock::time_point /*now*/) {}
  // "group 'dp' (ranks 0 2 4): all_reduce(F32 [4], sum) #12"
  virtual std::string describe() const = 0;
  virtual const char* call_name() const = 0;

  const Group& group() const { return *group_; }
  std::uint64_t sequence() const { return sequence_; }
  // Once it has been awaited.
  std::chrono::steady_clock::time_point ended() const { return ended_; }

 protected:
  std::shared_ptr<const Group> group_;
  const std::uint64_t sequence_;

 private:
  friend class Engine;
  using Time = std::chrono::steady_clock::time_point;
  int transfers_ = 0;  // that are under way
  const std::vector<int> others_;
  // Guarded by the engine's mutex.
  std::vector<bool> joined_;
  bool done_ = false;
  Time ended_{};                 // when it was done
  Time deadline_ = Time::max();  // while the rank waits for it
};

class Engine {
 public:
  // `world` is MPI's; it is duplicated.
  Engine(const MpiOptions& options, const MpiWorld& world);
  // After finish() only: end() does not return.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- For the rank's thread.
  const std::shared_ptr<const Group>& world() const { return world_; }
  Staging& staging() { return staging_; }
  // Throws Aborted when the run has failed.
  void submit(std::shared_ptr<Task> task);
  void await(Task& task);
  // An exception is on its way out and memory will go: tells the other ranks, and ends all traffic. `what` is
  // reported if the exception is handled before it ends the body.
  void leave(const std::string& what) noexcept;
  // Reports the failure and ends the run; returns only where that is under way already.
  void fail(const std::string& problem) noexcept;
  // The body has returned. True when all ranks' have; false when this rank has left or the run has failed.
  bool finish();
  // Ends all processes, with these problems unless another rank reports. Empty: what leave() was told.
  [[noreturn]] void end(int status, std::vector<std::string> problems) noexcept;

  // ---- For tasks, in the engine's thread.
  void send(Task& task, Part part, int peer, const std::byte* data, std::size_t bytes);
  void receive(Task& task, Part part, int peer, std::byte* data, std::size_t bytes);
  void joined(Task& task, int peer);
  // Blocks until all ranks of the group call it, which they must be known to do.
  MPI_Comm split(const Group& group, int color, int key);

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  struct Transfer;
  struct Control;
  struct Pending {
    MPI_Request request;
    std::shared_ptr<Transfer> transfer;
  };

  void run() noexcept;
  void loop();
  // Takes in what MPI has finished; false if nothing.
  bool pump();
  void dispatch(Transfer& transfer, std::size_t bytes);
  void retire(Task& task);
  // Begins what may; false if nothing.
  bool begin_queued();
  void add(MPI_Request request, std::shared_ptr<Transfer> transfer);
  void transfer(Task& task, Part part, int peer, std::byte* data, std::size_t bytes, bool receive);
  int tag(std::uint64_t sequence, Part part) const;
  void free_all();

  void receive_control();
  void send_control(int rank, const Control& message);
  void tell_all(const Control& message);
  void take_control(const Control& message);

  // Deadlines, ranks that have gone, a failure that nobody ends.
  void look();
  std::vector<int> absent(const Task& task) const;
  std::string absence(const Task& task, const std::vector<int>& missing, const std::string& why);
  std::string last_call() const;  // with mutex_ held

  // Tells all ranks that this one fails. False if another one reports: it failed earlier, or has a lower
  // rank.
  bool claim() noexcept;
  [[noreturn]] void die(const std::string& problem) noexcept;
  [[noreturn]] void report_and_abort(int status, std::vector<std::string> problems) noexcept;
  [[noreturn]] void wait_for_abort() noexcept;

  const MpiOptions options_;
  const int rank_, size_;
  Staging staging_;
  std::shared_ptr<const Group> world_;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::uint64_t tags_ = 0;  // sequence numbers that tags tell apart

  // The engine's thread only.
  std::vector<MPI_Comm> comms_;
  std::vector<Pending> pending_;
  std::vector<MPI_Request> requests_;  // scratch of pump()
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::shared_ptr<Task>> active_;
  std::vector<std::shared_ptr<Task>> queued_;  // not yet begun, in the order of submission
  int claimant_ = -1;                          // the lowest other rank that has failed
  Clock::time_point abort_due_ = Clock::time_point::max();
  std::vector<std::optional<Clock::time_point>> finished_;  // when each rank's body had returned
  std::vector<std::string> answers_;                        // each rank's last call
  bool announced_ = false;
  bool ended_ = false;              // the run has failed: tasks go no further
  std::atomic<bool> dying_{false};  // this rank sees to the end of the process

  std::mutex mutex_;
  std::condition_variable work_, changed_;  // for the engine's thread; for the rank's
  std::vector<std::shared_ptr<Task>> submitted_;
  bool aborted_ = false;  // another rank has failed
  bool leave_ = false, finish_ = false;
  std::optional<std::string> failure_;
  bool gone_ = false;      // the engine's thread makes no more calls of MPI
  bool reporter_ = false;  // this rank's failure is the one to report
  std::string left_;
  std::string last_group_;
  const char* last_name_ = nullptr;
  std::uint64_t last_sequence_ = 0;
  bool waiting_ = false;

  std::thread thread_;
};

}  // namespace weft::mpi
