#include "comm/local/world.hpp"

#include <algorithm>

#include "comm/local/group.hpp"

namespace weft::local {

World::World(const LocalOptions& options)
    : options_(options),
      finished_(static_cast<std::size_t>(options.ranks)),
      last_calls_(static_cast<std::size_t>(options.ranks)) {}

void World::fail(int rank, const Error& error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      // Texts only: an exception object shared between threads would have to be freed in one of them.
      if (const auto* config = dynamic_cast<const ConfigError*>(&error)) {
        failure_ = Failure{rank, true, config->problems};
      } else {
        failure_ = Failure{rank, false, {error.what()}};
      }
    }
    aborted_.store(true, std::memory_order_release);
  }
  wake();
}

void World::leave(int rank, const std::string& what) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!left_) left_ = Failure{rank, false, {what}};
    aborted_.store(true, std::memory_order_release);
  }
  wake();
}

void World::finish(int rank) noexcept {
  finished_[static_cast<std::size_t>(rank)].store(true, std::memory_order_release);
  wake();
}

void World::wake() {
  const std::lock_guard lock(mutex_);
  for (Group* group : groups_) group->wake();
}

void World::throw_aborted() {
  throw Aborted("another rank failed");
}

void World::rethrow() const {
  const std::lock_guard lock(mutex_);
  const std::optional<Failure>& failure = failure_ ? failure_ : left_;
  if (!failure) return;
  std::vector<std::string> problems = failure->problems;
  problems.front() = fmt::format("rank {}: {}", failure->rank, problems.front());
  if (failure->config) throw ConfigError(problems);
  throw Error(problems.front());
}

void World::note(int rank, const std::string& group, const char* call, std::uint64_t sequence) {
  LastCall& last = last_calls_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(last.mutex);
  last.group = group;
  last.call = call;
  last.sequence = sequence;
}

void World::note_waiting(int rank, bool waiting) {
  LastCall& last = last_calls_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(last.mutex);
  last.waiting = waiting;
}

std::string World::last_calls(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    LastCall& last = last_calls_[static_cast<std::size_t>(rank)];
    const std::lock_guard lock(last.mutex);
    text += fmt::format("{}rank {}: ", text.empty() ? "" : "; ", rank);
    if (last.call == nullptr) {
      text += "none";
    } else {
      text += fmt::format("{} #{} in group '{}'{}", last.call, last.sequence, last.group,
                          last.waiting ? ", now waiting" : "");
    }
  }
  return text;
}

void World::enroll(Group* group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

void World::withdraw(Group* group) {
  const std::lock_guard lock(mutex_);
  groups_.erase(std::find(groups_.begin(), groups_.end(), group));
}

}  // namespace weft::local
