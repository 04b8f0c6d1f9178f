#include "comm/local/launcher.hpp"

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/local/local_communicator.hpp"
#include "core/log.hpp"

namespace weft {
namespace {

using local::Group;
using local::World;

// Counts the ranks that are still in their bodies.
class Running {
 public:
  explicit Running(int count) : left_(count) {}

  void one_less() {
    const std::lock_guard lock(mutex_);
    if (--left_ == 0) none_.notify_all();
  }
  // Waits until all have left; false if the run failed and some have not left within `grace` after that.
  bool wait(const World& world, std::chrono::milliseconds grace) {
    constexpr std::chrono::milliseconds kLook{
        50};  // how often to look at the flag: this thread has nothing else to do
    std::unique_lock lock(mutex_);
    while (left_ > 0 && !world.aborted()) none_.wait_for(lock, kLook);
    if (grace.count() == 0) {
      none_.wait(lock, [this] { return left_ == 0; });
      return true;
    }
    return none_.wait_for(lock, grace, [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int left_;
};

void run_rank(const std::shared_ptr<World>& world, const std::shared_ptr<Group>& group, int rank,
              const std::function<void(Communicator&)>& body) {
  try {
    const std::unique_ptr<Communicator> communicator = local::local_communicator(group, rank);
    body(*communicator);
    world->finish(rank);
  } catch (const Aborted& e) {
    world->leave(rank, e.what());
  } catch (const Error& e) {
    world->fail(rank, e);
  } catch (const std::exception& e) {
    world->fail(rank, Error(e.what()));
  } catch (...) {
    world->fail(rank, Error("an exception of unknown type"));
  }
}

}  // namespace

void run_local_ranks(const LocalOptions& options, const std::function<void(Communicator& world)>& body) {
  WEFT_CHECK(options.ranks >= 1, "{} ranks", options.ranks);
  const auto world = std::make_shared<World>(options);
  std::vector<int> ranks(static_cast<std::size_t>(options.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = std::make_shared<Group>(world, "world", ranks);
  Running running(options.ranks);
  std::vector<std::thread> threads;
  for (const int rank : ranks) {
    try {
      threads.emplace_back([&, rank] {
        run_rank(world, group, rank, body);
        running.one_less();
      });
    } catch (const std::system_error& e) {
      world->fail(rank, Error(fmt::format("cannot start the thread of rank {} of {}: {}", rank, options.ranks,
                                          e.what())));
      for (int i = rank; i < options.ranks; ++i) running.one_less();
      break;
    }
  }
  if (!running.wait(*world, options.grace)) {
    // A rank is stuck where no flag is seen. Its thread cannot be ended, and the process must be.
    try {
      world->rethrow();
    } catch (const Error& e) {
      log_warn("{}", e.what());
    }
    log_warn("some ranks have not noticed within {} ms; ending the process", options.grace.count());
    std::_Exit(1);
  }
  for (std::thread& thread : threads) thread.join();
  world->rethrow();
}

}  // namespace weft
