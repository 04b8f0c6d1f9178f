#include "core/workers.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.hpp"

namespace weft {

struct Workers::State {
  std::vector<std::thread> helpers;
  std::mutex mutex;
  std::condition_variable start, finished;
  std::uint64_t round = 0;
  int busy = 0;
  bool stop = false;

  // The work of the current round.
  const std::function<void(std::int64_t, std::int64_t)>* body = nullptr;
  std::int64_t n = 0, grain = 1;
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;

  void work() {
    for (;;) {
      const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= n) return;
      try {
        (*body)(begin, std::min(n, begin + grain));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  }

  void end() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    start.notify_all();
    for (std::thread& t : helpers) t.join();
    helpers.clear();
  }

  void helper() {
    std::uint64_t seen = 0;
    for (;;) {
      std::unique_lock lock(mutex);
      start.wait(lock, [&] { return stop || round != seen; });
      if (stop) return;
      seen = round;
      lock.unlock();
      work();
      lock.lock();
      if (--busy == 0) finished.notify_one();
    }
  }
};

Workers::Workers(int threads) : state_(std::make_unique<State>()) {
  try {
    for (int i = 1; i < threads; ++i) state_->helpers.emplace_back([this] { state_->helper(); });
  } catch (const std::system_error& e) {
    const std::size_t started = state_->helpers.size();
    state_->end();
    fail("cannot start thread {} of the {} threads of a rank (--cpu-threads): {}", started + 2, threads,
         e.what());
  }
}

Workers::~Workers() {
  state_->end();
}

int Workers::threads() const {
  return static_cast<int>(state_->helpers.size()) + 1;
}

void Workers::parallel_for(std::int64_t n, std::int64_t grain,
                           const std::function<void(std::int64_t, std::int64_t)>& body) {
  State& s = *state_;
  grain = std::max<std::int64_t>(grain, 1);
  if (s.helpers.empty() || n <= grain) {
    for (std::int64_t begin = 0; begin < n; begin += grain) body(begin, std::min(n, begin + grain));
    return;
  }
  {
    const std::lock_guard lock(s.mutex);
    s.body = &body;
    s.n = n;
    s.grain = grain;
    s.next.store(0, std::memory_order_relaxed);
    s.busy = static_cast<int>(s.helpers.size());
    s.error = nullptr;
    ++s.round;
  }
  s.start.notify_all();
  s.work();
  std::unique_lock lock(s.mutex);
  s.finished.wait(lock, [&] { return s.busy == 0; });
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace weft
