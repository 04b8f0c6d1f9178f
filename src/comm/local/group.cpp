#include "comm/local/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace weft::local {
namespace {

using Clock = std::chrono::steady_clock;

// A timeout of centuries must not overflow the clock.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);

std::vector<int> iota(int n) {
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Group::Group(std::shared_ptr<World> world, std::string name, std::vector<int> ranks)
    : world_(std::move(world)), name_(std::move(name)), ranks_(std::move(ranks)) {
  collectives_.participants = iota(size());
  collectives_.next.resize(ranks_.size());
  world_->enroll(this);
  if (world_->options().link) worker_ = std::thread([this] { work(); });
}

Group::~Group() {
  if (worker_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    ready_changed_.notify_one();
    worker_.join();
  }
  world_->withdraw(this);
}

void Group::wake() {
  // Taking the lock closes the gap between a waiter's last look at the flag and its sleep.
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

std::shared_ptr<Exchange> Group::join(int rank, Call call) {
  Lock lock(mutex_);
  return join(lock, collectives_, static_cast<std::size_t>(rank), std::move(call));
}

Group::Queue& Group::message_queue(int sender, int receiver) {
  Queue& queue = messages_[{sender, receiver}];
  if (queue.participants.empty()) {
    queue.participants = {sender, receiver};
    queue.next.resize(2);
  }
  return queue;
}

std::shared_ptr<Exchange> Group::join_send(int sender, int receiver, Call call) {
  Lock lock(mutex_);
  return join(lock, message_queue(sender, receiver), 0, std::move(call));
}

std::shared_ptr<Exchange> Group::join_receive(int sender, int receiver, Call call) {
  Lock lock(mutex_);
  return join(lock, message_queue(sender, receiver), 1, std::move(call));
}

std::shared_ptr<Exchange> Group::join(Lock& lock, Queue& queue, std::size_t participant, Call call) {
  if (world_->aborted()) World::throw_aborted();
  const std::uint64_t sequence = queue.next[participant]++;
  std::shared_ptr<Exchange>& place = queue.open[sequence];
  if (!place) place = std::make_shared<Exchange>(sequence, queue.participants);
  const std::shared_ptr<Exchange> exchange = place;
  if (exchange->withdrawn) World::throw_aborted();
  world_->note(world_rank(queue.participants[participant]), name_, name_of(call.kind), sequence);
  exchange->calls[participant] = std::move(call);
  exchange->joined[participant] = true;
  if (--exchange->missing > 0) return exchange;

  queue.open.erase(sequence);
  exchange->stage = Stage::kRunning;
  if (worker_.joinable()) {
    exchange->due = std::max(Clock::now(), queue.link_free) + link_time(*exchange);
    if (world_->options().link->queued) queue.link_free = exchange->due;
    ready_.push_back(exchange);
    lock.unlock();
    ready_changed_.notify_one();
  } else {
    lock.unlock();
    run(*exchange);
  }
  return exchange;
}

std::chrono::nanoseconds Group::link_time(const Exchange& exchange) const {
  const LinkModel& link = *world_->options().link;
  std::uint64_t bytes = 0;
  for (const Call& call : exchange.calls) bytes = std::max(bytes, call.bytes_sent);
  if (link.bytes_per_second <= 0) return link.latency;
  const double seconds = static_cast<double>(bytes) / link.bytes_per_second;
  return link.latency +
         std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

void Group::run(Exchange& exchange) {
  std::optional<Error> error;
  Mismatch mismatch;
  try {
    mismatch = find_mismatch(exchange.calls);
    if (mismatch.found) {
      error = mismatch_error(exchange, mismatch);
    } else if (exchange.calls[0].kind == Kind::kSplit) {
      split(exchange);
    } else {
      execute(exchange.calls);
    }
  } catch (const std::exception& e) {  // no memory, no threads
    error = Error(fmt::format("{} failed: {}", describe(exchange, exchange.calls[0]), e.what()));
  }
  // Before the ranks can see it: who leaves because of it must find it reported already.
  if (error) world_->fail(world_rank(exchange.participants[mismatch.first]), *error);
  {
    const std::lock_guard lock(mutex_);
    exchange.stage = error ? Stage::kFailed : Stage::kDone;
    exchange.ended = Clock::now();
  }
  changed_.notify_all();
  if (error) throw *error;
}

// Ranks of one colour form a group, ordered by (key, rank).
void Group::split(Exchange& exchange) {
  const std::vector<Call>& calls = exchange.calls;
  exchange.split.resize(calls.size());
  std::map<int, std::vector<int>> members;
  for (int rank = 0; rank < size(); ++rank) {
    const int color = calls[static_cast<std::size_t>(rank)].color;
    if (color >= 0) members[color].push_back(rank);
  }
  for (auto& [color, ranks] : members) {
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
      return calls[static_cast<std::size_t>(a)].key < calls[static_cast<std::size_t>(b)].key;
    });
    if (ranks.size() == 1) continue;
    std::vector<int> of_world;
    for (const int rank : ranks) of_world.push_back(world_rank(rank));
    const std::string& name = calls[static_cast<std::size_t>(ranks[0])].split_name;
    const auto group = std::make_shared<Group>(world_, name, std::move(of_world));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      exchange.split[static_cast<std::size_t>(ranks[i])] = {group, static_cast<int>(i)};
    }
  }
}

void Group::work() {
  Lock lock(mutex_);
  for (;;) {
    ready_changed_.wait(lock, [this] { return stop_ || !ready_.empty(); });
    if (ready_.empty()) return;
    const std::shared_ptr<Exchange> exchange = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    try {
      run(*exchange);
    } catch (const Error&) {  // the run has been failed
    }
    lock.lock();
  }
}

void Group::await(int rank, Exchange& exchange) {
  const auto deadline = Clock::now() + std::min(world_->options().timeout, kLongest);
  Lock lock(mutex_);
  const auto done = [&] { return exchange.stage == Stage::kDone && Clock::now() >= exchange.due; };
  if (done()) return;
  world_->note_waiting(world_rank(rank), true);
  std::optional<Error> error;
  while (!done() && !error) {
    if (world_->aborted() || exchange.stage == Stage::kFailed) {
      leave(lock, exchange);
      World::throw_aborted();
    }
    if (exchange.stage == Stage::kOpen) {
      const std::vector<int> missing = absent(exchange);
      const auto gone = [this](int r) { return world_->finished(r); };
      if (std::any_of(missing.begin(), missing.end(), gone)) {
        error = absent_error(exchange, rank, "can never complete: a rank has returned without joining it");
      } else if (Clock::now() >= deadline) {
        error = absent_error(exchange, rank,
                             fmt::format("timed out after {:.3g} s",
                                         std::chrono::duration<double>(world_->options().timeout).count()));
      } else {
        changed_.wait_until(lock, deadline);
      }
    } else if (exchange.stage == Stage::kRunning) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, exchange.due);
    }
  }
  if (error) {
    leave(lock, exchange);
    lock.unlock();
    world_->fail(world_rank(rank), *error);
    throw *error;
  }
  world_->note_waiting(world_rank(rank), false);
}

void Group::leave(Exchange& exchange) noexcept {
  Lock lock(mutex_);
  leave(lock, exchange);
}

void Group::leave(Lock& lock, Exchange& exchange) {
  if (exchange.stage == Stage::kOpen) exchange.withdrawn = true;
  changed_.wait(lock, [&] { return exchange.stage != Stage::kRunning; });
}

std::string Group::describe(const Exchange& exchange, const Call& call) const {
  const bool message = call.kind == Kind::kSend || call.kind == Kind::kReceive;
  const std::string route =
      message ? fmt::format(" from rank {} to rank {}", world_rank(exchange.participants[0]),
                            world_rank(exchange.participants[1]))
              : "";
  return fmt::format("group '{}' (ranks {}): {} #{}{}", name_, fmt::join(ranks_, " "), to_string(call),
                     exchange.sequence, route);
}

Error Group::mismatch_error(const Exchange& exchange, const Mismatch& mismatch) const {
  const Call &first = exchange.calls[mismatch.first], &other = exchange.calls[mismatch.other];
  return Error(fmt::format(
      "group '{}' (ranks {}), operation #{}: the calls of its ranks differ: rank {} called {}, but "
      "rank {} called {}",
      name_, fmt::join(ranks_, " "), exchange.sequence, world_rank(exchange.participants[mismatch.first]),
      to_string(first), world_rank(exchange.participants[mismatch.other]), to_string(other)));
}

std::vector<int> Group::absent(const Exchange& exchange) const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < exchange.joined.size(); ++i) {
    if (!exchange.joined[i]) ranks.push_back(world_rank(exchange.participants[i]));
  }
  return ranks;
}

Error Group::absent_error(const Exchange& exchange, int rank, const std::string& why) const {
  std::size_t own = 0;
  while (!exchange.joined[own] || exchange.participants[own] != rank) ++own;
  const std::vector<int> missing = absent(exchange);
  // Who is missing may only be held up itself: the last calls of all ranks lead to the cause.
  constexpr int kAll = 64;
  const std::vector<int> shown = world_->options().ranks <= kAll ? iota(world_->options().ranks) : missing;
  return Error(
      fmt::format("{} {}; {} {} not joined it. Last calls: {}", describe(exchange, exchange.calls[own]), why,
                  fmt::format("{} {}", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, " ")),
                  missing.size() == 1 ? "has" : "have", world_->last_calls(shown)));
}

}  // namespace weft::local
