// Workers: the threads one rank may use inside an operation. Work is cut into pieces whose borders never
// depend on the number of threads, so results do not either.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace weft {

class Workers {
 public:
  // `threads` counts the caller; 1 starts none.
  explicit Workers(int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const;
  // Calls body(begin, end) on [0, n) in pieces of `grain` (the last may be shorter), in any order, and
  // returns when all are done. The first exception is rethrown here. Not reentrant: a body must not call it.
  void parallel_for(std::int64_t n, std::int64_t grain,
                    const std::function<void(std::int64_t, std::int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft
