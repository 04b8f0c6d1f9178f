#include "comm/mpi/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>

namespace weft::mpi {
namespace {

using namespace std::chrono_literals;

// Sleeps between tests: short after something has happened, then longer. Ranks may share cores.
constexpr auto kShortest = 10us, kLongest = 200us;
// With nothing in flight: how soon another rank's failure is seen.
constexpr auto kIdle = 5ms;
// How long failures of several ranks may lie apart and still be taken for one.
constexpr auto kClaim = 200ms;
constexpr auto kLastReads = 1s;
constexpr auto kAnswer = 500ms;
// A launcher that is told to end everything may drop what has just been printed.
constexpr auto kPrinted = 200ms;
// Messages sent before a rank's last may arrive after it.
constexpr auto kStragglers = 1s;
// After a deadline: how long the engine's thread may take to act on it.
constexpr auto kStuck = 5s;
// A timeout of centuries must not overflow the clock.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

constexpr int kParts = 8;

// The handlers of signals are the main thread's affair.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("{} failed: {}", call, text);
}

// Messages about the run itself, on a communicator of their own.
struct Engine::Control {
  enum Kind : std::int32_t { kFailing, kFinished, kQuery, kAnswerTo };
  std::int32_t kind, rank;
  char text[240];
};

// One message, in one piece or several.
struct Engine::Transfer {
  Task* task = nullptr;  // null: a control message
  Part part{};
  int peer = 0;
  bool receive = false;
  int pieces = 0;
  std::size_t bytes = 0;
  Control control{};
};

Engine::Engine(const MpiOptions& options, const MpiWorld& world)
    : options_(options),
      rank_(world.rank),
      size_(world.size),
      finished_(static_cast<std::size_t>(world.size)),
      answers_(static_cast<std::size_t>(world.size)) {
  auto group = std::make_shared<Group>();
  group->name = "world";
  group->comm = duplicate(MPI_COMM_WORLD);
  group->rank = rank_;
  group->ranks = all_ranks(size_);
  control_ = duplicate(MPI_COMM_WORLD);
  comms_ = {group->comm, control_};
  world_ = std::move(group);
  void* bound = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(control_, MPI_TAG_UB, &bound, &found), "MPI_Comm_get_attr");
  const int largest = found != 0 ? *static_cast<int*>(bound) : 32767;  // what the standard promises
  tags_ = static_cast<std::uint64_t>(largest) / kParts;
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  if (thread_.joinable()) thread_.join();
}

// ---- The rank's thread.

void Engine::submit(std::shared_ptr<Task> task) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_ || leave_) throw Aborted("another rank failed");
    last_group_ = task->group().name;
    last_name_ = task->call_name();
    last_sequence_ = task->sequence();
    submitted_.push_back(std::move(task));
  }
  work_.notify_one();
}

void Engine::await(Task& task) {
  const auto deadline = Clock::now() + std::min(options_.timeout, kLongestTimeout);
  Lock lock(mutex_);
  if (task.done_) return;
  task.deadline_ = deadline;
  waiting_ = true;
  while (!task.done_) {
    if (aborted_ || leave_) throw Aborted("another rank failed");
    if (Clock::now() < deadline + kStuck) {
      changed_.wait_until(lock, deadline + kStuck);
    } else if (dying_) {
      changed_.wait(lock);  // the process ends
    } else {
      lock.unlock();
      report_and_abort(
          1, {fmt::format("rank {}: {} timed out, and MPI itself does not return", rank_, task.describe())});
    }
  }
  task.deadline_ = Clock::time_point::max();
  waiting_ = false;
}

void Engine::leave(const std::string& what) noexcept {
  Lock lock(mutex_);
  if (left_.empty()) left_ = what;
  leave_ = true;
  work_.notify_one();
  changed_.wait_for(lock, options_.grace + kStuck, [this] { return gone_; });
}

void Engine::fail(const std::string& problem) noexcept {
  Lock lock(mutex_);
  if (!failure_) failure_ = problem;
  work_.notify_one();
  changed_.wait(lock, [this] { return gone_; });
}

bool Engine::finish() {
  {
    Lock lock(mutex_);
    finish_ = true;
    work_.notify_one();
    changed_.wait(lock, [this] { return gone_ || aborted_ || leave_; });
    if (aborted_ || leave_) return false;
  }
  thread_.join();
  return true;
}

void Engine::end(int status, std::vector<std::string> problems) noexcept {
  leave(problems.empty() ? "" : problems.front());
  bool reporter = false;
  {
    const std::lock_guard lock(mutex_);
    reporter = reporter_ || (!gone_ && !dying_);  // or the engine's thread hangs
    if (problems.empty()) problems = {left_};
  }
  if (!reporter) wait_for_abort();
  problems.front() = fmt::format("rank {}: {}", rank_, problems.front());
  report_and_abort(status, std::move(problems));
}

// ---- Transfers.

int Engine::tag(std::uint64_t sequence, Part part) const {
  return static_cast<int>(sequence % tags_) * kParts + static_cast<int>(part);
}

void Engine::add(MPI_Request request, std::shared_ptr<Transfer> transfer) {
  pending_.push_back({request, std::move(transfer)});
}

void Engine::transfer(Task& task, Part part, int peer, std::byte* data, std::size_t bytes, bool receive) {
  if (bytes == 0) return;  // the slice of a rank where a sum has fewer elements than ranks: both sides know
  const auto transfer = std::make_shared<Transfer>();
  transfer->task = &task;
  transfer->part = part;
  transfer->peer = peer;
  transfer->receive = receive;
  ++task.transfers_;
  MPI_Comm comm = task.group().comm;
  const int number = tag(task.sequence(), part);
  // Pieces of one tag arrive in the order in which they were sent, and both sides cut alike. The receiver of
  // a call does not know its length, which is short.
  const bool call = part == Part::kCall || part == Part::kMessageCall;
  const std::size_t longest =
      call ? bytes : std::clamp<std::size_t>(options_.longest_message, 1, std::numeric_limits<int>::max());
  for (std::size_t begin = 0; begin < bytes; begin += longest) {
    const int count = static_cast<int>(std::min(bytes - begin, longest));
    MPI_Request request = MPI_REQUEST_NULL;
    if (receive) {
      check_mpi(MPI_Irecv(data + begin, count, MPI_BYTE, peer, number, comm, &request), "MPI_Irecv");
    } else if (part == Part::kMessageCall) {  // done when the receiver has joined, not before
      check_mpi(MPI_Issend(data + begin, count, MPI_BYTE, peer, number, comm, &request), "MPI_Issend");
    } else {
      check_mpi(MPI_Isend(data + begin, count, MPI_BYTE, peer, number, comm, &request), "MPI_Isend");
    }
    ++transfer->pieces;
    add(request, transfer);
  }
}

void Engine::send(Task& task, Part part, int peer, const std::byte* data, std::size_t bytes) {
  transfer(task, part, peer, const_cast<std::byte*>(data), bytes, false);
}

void Engine::receive(Task& task, Part part, int peer, std::byte* data, std::size_t bytes) {
  transfer(task, part, peer, data, bytes, true);
}

void Engine::joined(Task& task, int peer) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < task.others_.size(); ++i) {
    if (task.others_[i] == peer) task.joined_[i] = true;
  }
}

MPI_Comm Engine::split(const Group& group, int color, int key) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(group.comm, color, key, &comm), "MPI_Comm_split");
  if (comm == MPI_COMM_NULL) return comm;
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  comms_.push_back(comm);
  return comm;
}

bool Engine::pump() {
  if (pending_.empty()) return false;
  const std::size_t n = pending_.size();
  requests_.resize(n);
  indices_.resize(n);
  statuses_.resize(n);
  for (std::size_t i = 0; i < n; ++i) requests_[i] = pending_[i].request;
  int count = 0;
  const int code =
      MPI_Testsome(static_cast<int>(n), requests_.data(), &count, indices_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < count; ++i) check_mpi(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, "a transfer");
  } else {
    check_mpi(code, "MPI_Testsome");
  }
  if (count == MPI_UNDEFINED || count <= 0) return false;
  std::vector<std::pair<std::shared_ptr<Transfer>, std::size_t>> done;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    std::shared_ptr<Transfer>& transfer = pending_[at].transfer;
    int bytes = 0;
    if (transfer->receive) MPI_Get_count(&statuses_[static_cast<std::size_t>(i)], MPI_BYTE, &bytes);
    done.emplace_back(std::move(transfer), static_cast<std::size_t>(bytes));
  }
  for (std::size_t i = 0; i < n; ++i) pending_[i].request = requests_[i];
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(),
                                [](const Pending& p) { return p.request == MPI_REQUEST_NULL; }),
                 pending_.end());
  for (const auto& [transfer, bytes] : done) {
    transfer->bytes += bytes;
    if (--transfer->pieces == 0) dispatch(*transfer, transfer->bytes);
  }
  return true;
}

void Engine::dispatch(Transfer& transfer, std::size_t bytes) {
  if (transfer.task == nullptr) {
    if (!transfer.receive) return;
    take_control(transfer.control);
    return receive_control();
  }
  if (ended_) return;
  Task& task = *transfer.task;
  if (transfer.receive) {
    task.received(*this, transfer.part, transfer.peer, bytes);
  } else {
    task.sent(*this, transfer.part, transfer.peer);
  }
  if (--task.transfers_ == 0) retire(task);
}

bool Engine::begin_queued() {
  constexpr int kPieces = 2;  // one that is being summed, one whose data is on its way
  std::vector<std::shared_ptr<Task>> rest;
  std::vector<const Group*> full;  // groups of which no further piece may begin
  for (std::shared_ptr<Task>& task : queued_) {
    if (ended_) break;
    const Group* group = &task->group();
    if (task->is_piece()) {
      const auto active = std::count_if(active_.begin(), active_.end(), [&](const auto& other) {
        return other->is_piece() && &other->group() == group;
      });
      if (active >= kPieces || std::find(full.begin(), full.end(), group) != full.end()) {
        full.push_back(group);
        rest.push_back(std::move(task));
        continue;
      }
    }
    active_.push_back(task);
    ++task->transfers_;  // not done before it has begun
    task->begin(*this);
    if (--task->transfers_ == 0) retire(*task);
  }
  const bool begun = rest.size() < queued_.size();
  queued_ = std::move(rest);
  return begun;
}

void Engine::retire(Task& task) {
  task.complete(*this);
  const auto place = std::find_if(active_.begin(), active_.end(),
                                  [&](const std::shared_ptr<Task>& t) { return t.get() == &task; });
  const std::shared_ptr<Task> keep = std::move(*place);
  active_.erase(place);
  {
    const std::lock_guard lock(mutex_);
    keep->done_ = true;
    keep->ended_ = Clock::now();
  }
  changed_.notify_all();
}

// ---- The engine's thread.

void Engine::run() noexcept {
  block_signals();
  try {
    receive_control();
    loop();
  } catch (const std::exception& e) {
    die(e.what());
  }
}

void Engine::loop() {
  std::chrono::microseconds pause = kShortest;
  bool moved = false;
  for (;;) {
    std::vector<std::shared_ptr<Task>> fresh;
    bool leave = false, finish = false;
    std::optional<std::string> failure;
    {
      Lock lock(mutex_);
      const auto asked = [this] {
        return !submitted_.empty() || leave_ || failure_ || (finish_ && !announced_);
      };
      const bool idle = pending_.size() == 1;  // the receive of a control message
      if (!moved) work_.wait_for(lock, idle ? std::chrono::microseconds(kIdle) : pause, asked);
      fresh.swap(submitted_);
      leave = leave_;
      finish = finish_;
      failure = failure_;
    }
    if (failure) die(*failure);
    if (leave) {
      if (!claim()) wait_for_abort();  // and the memory stays, which other ranks may be reading
      {
        const std::lock_guard lock(mutex_);
        reporter_ = true;
        gone_ = true;
      }
      changed_.notify_all();
      return;
    }
    if (finish && !announced_) {
      announced_ = true;
      finished_[static_cast<std::size_t>(rank_)] = Clock::now();
      tell_all({Control::kFinished, rank_, ""});
    }
    queued_.insert(queued_.end(), fresh.begin(), fresh.end());
    const bool begun = begin_queued();
    moved = pump() || begun;
    pause = moved ? kShortest
                  : std::min(std::chrono::microseconds(2 * pause), std::chrono::microseconds(kLongest));
    look();
    if (finish && pending_.size() == 1 &&
        std::all_of(finished_.begin(), finished_.end(), [](const auto& f) { return f.has_value(); })) {
      free_all();
      {
        const std::lock_guard lock(mutex_);
        gone_ = true;
      }
      changed_.notify_all();
      return;
    }
  }
}

void Engine::free_all() {
  MPI_Request& control = pending_[0].request;
  check_mpi(MPI_Cancel(&control), "MPI_Cancel");
  check_mpi(MPI_Wait(&control, MPI_STATUS_IGNORE), "MPI_Wait");
  pending_.clear();
  // Any two ranks have made the groups that they share in the same order.
  for (MPI_Comm& comm : comms_) check_mpi(MPI_Comm_free(&comm), "MPI_Comm_free");
}

// ---- About the run itself.

void Engine::receive_control() {
  const auto transfer = std::make_shared<Transfer>();
  transfer->receive = true;
  transfer->pieces = 1;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(&transfer->control, sizeof(Control), MPI_BYTE, MPI_ANY_SOURCE, 0, control_, &request),
            "MPI_Irecv");
  add(request, transfer);
}

void Engine::send_control(int rank, const Control& message) {
  const auto transfer = std::make_shared<Transfer>();
  transfer->pieces = 1;
  transfer->control = message;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(&transfer->control, sizeof(Control), MPI_BYTE, rank, 0, control_, &request),
            "MPI_Isend");
  add(request, transfer);
}

void Engine::tell_all(const Control& message) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) send_control(rank, message);
  }
}

void Engine::take_control(const Control& message) {
  const auto sender = static_cast<std::size_t>(message.rank);
  switch (message.kind) {
    case Control::kFailing:
      claimant_ = claimant_ < 0 ? message.rank : std::min(claimant_, message.rank);
      if (dying_) return;
      ended_ = true;
      abort_due_ = Clock::now() + options_.grace;
      {
        const std::lock_guard lock(mutex_);
        aborted_ = true;
      }
      changed_.notify_all();
      return;
    case Control::kFinished:
      finished_[sender] = Clock::now();
      return;
    case Control::kQuery: {
      Control answer{Control::kAnswerTo, rank_, ""};
      {
        const std::lock_guard lock(mutex_);
        std::snprintf(answer.text, sizeof answer.text, "%s", last_call().c_str());
      }
      return send_control(message.rank, answer);
    }
    case Control::kAnswerTo:
      answers_[sender] = message.text;
      return;
    default:
      return;
  }
}

std::string Engine::last_call() const {
  if (last_name_ == nullptr) return "none";
  return fmt::format("{} #{} in group '{}'{}", last_name_, last_sequence_, last_group_,
                     waiting_ ? ", now waiting" : "");
}

std::vector<int> Engine::absent(const Task& task) const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < task.others_.size(); ++i) {
    if (!task.joined_[i]) ranks.push_back(task.group().world_rank(task.others_[i]));
  }
  return ranks;
}

void Engine::look() {
  const auto now = Clock::now();
  if (now >= abort_due_) {
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);
  }
  if (ended_) return;
  for (const std::shared_ptr<Task>& task : active_) task->look(now);
  const Task* task = nullptr;
  std::vector<int> missing;
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    // `waited`: what the rank may be waiting for; `needed`: what that needs first.
    const auto lost = [&](const Task& waited, const Task& needed) {
      if (waited.deadline_ == Clock::time_point::max()) return false;
      missing = absent(needed);
      const bool left = std::any_of(missing.begin(), missing.end(), [&](int rank) {
        const auto& finished = finished_[static_cast<std::size_t>(rank)];
        return finished && now >= *finished + kStragglers;
      });
      if (!left && now < waited.deadline_) return false;
      why = left ? "can never complete: a rank has returned without joining it"
                 : fmt::format("timed out after {:.3g} s",
                               std::chrono::duration<double>(options_.timeout).count());
      task = &needed;
      return true;
    };
    const auto begun = [&](const std::shared_ptr<Task>& t) { return lost(*t, *t); };
    // Pieces begin when those before them are done.
    const auto queued = [&](const std::shared_ptr<Task>& t) {
      const auto before = std::find_if(active_.begin(), active_.end(), [&](const auto& other) {
        return other->is_piece() && &other->group() == &t->group();
      });
      return before != active_.end() && lost(*t, **before);
    };
    (void)(std::any_of(active_.begin(), active_.end(), begun) ||
           std::any_of(queued_.begin(), queued_.end(), queued));
  }
  if (task != nullptr) die(absence(*task, missing, why));
}

// Who is missing may only be held up itself: the last calls of all ranks lead to the cause.
std::string Engine::absence(const Task& task, const std::vector<int>& missing, const std::string& why) {
  constexpr int kAll = 64;
  dying_ = ended_ = true;
  const std::vector<int> shown = size_ <= kAll ? all_ranks(size_) : missing;
  for (const int rank : shown) {
    if (rank != rank_) send_control(rank, {Control::kQuery, rank_, ""});
  }
  const auto until = Clock::now() + kAnswer;
  const auto silent = [&](int rank) {
    return rank != rank_ && answers_[static_cast<std::size_t>(rank)].empty();
  };
  while (Clock::now() < until && claimant_ < 0 && std::any_of(shown.begin(), shown.end(), silent)) {
    if (!pump()) std::this_thread::sleep_for(1ms);
  }
  std::string calls;
  for (const int rank : shown) {
    std::string text = answers_[static_cast<std::size_t>(rank)];
    if (rank == rank_) {
      const std::lock_guard lock(mutex_);
      text = last_call();
    }
    if (text.empty()) text = "no answer (the process has stopped, or hangs)";
    calls += fmt::format("{}rank {}: {}", calls.empty() ? "" : "; ", rank, text);
  }
  const std::string who = missing.empty()
                              ? "all ranks have joined it"
                              : fmt::format("{} {} {} not joined it", missing.size() == 1 ? "rank" : "ranks",
                                            fmt::join(missing, " "), missing.size() == 1 ? "has" : "have");
  return fmt::format("{} {}; {}. Last calls: {}", task.describe(), why, who, calls);
}

// ---- The end.

bool Engine::claim() noexcept {
  dying_ = ended_ = true;
  try {
    while (pump()) {
    }
    if (claimant_ >= 0) return false;
    tell_all({Control::kFailing, rank_, ""});
    // Others may be reading this rank's memory, which goes after this.
    const auto sends = [](const Pending& p) { return p.transfer->task != nullptr && !p.transfer->receive; };
    const auto begin = Clock::now();
    while (Clock::now() < begin + kClaim ||
           (Clock::now() < begin + kLastReads && std::any_of(pending_.begin(), pending_.end(), sends))) {
      if (!pump()) std::this_thread::sleep_for(1ms);
    }
  } catch (const std::exception&) {  // MPI does not work any longer: say what has happened
    return true;
  }
  return claimant_ < 0 || claimant_ > rank_;
}

void Engine::die(const std::string& problem) noexcept {
  if (!claim()) wait_for_abort();
  report_and_abort(1, {fmt::format("rank {}: {}", rank_, problem)});
}

void Engine::report_and_abort(int status, std::vector<std::string> problems) noexcept {
  try {
    const std::string place = options_.where ? options_.where() : "";
    if (!place.empty()) problems.front() += fmt::format(" ({})", place);
    if (options_.report) {
      options_.report(problems);
    } else {
      for (const std::string& problem : problems) fmt::print(stderr, "error: {}\n", problem);
    }
  } catch (const std::exception&) {  // the end must come
  }
  std::fflush(stderr);
  std::this_thread::sleep_for(kPrinted);
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

void Engine::wait_for_abort() noexcept {
  std::this_thread::sleep_for(options_.grace);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::_Exit(1);
}

}  // namespace weft::mpi
