// What routing and its balance losses have in common: scores of experts, and the choice of the best.
#pragma once

#include <cmath>
#include <vector>

#include "ops/cpu/math.hpp"
#include "ops/cpu/support.hpp"
#include "ops/moe.hpp"

namespace weft::ops::cpu {

// Against a division by nothing where all scores are 0.
inline constexpr double kScoreEpsilon = 1e-20;

// y = softmax(x), x[at(0)], x[at(1)], ...; returns logsumexp.
template <class A, class At>
A softmax_at(const A* x, Index n, const At& at, A* y) {
  A max = x[at(0)];
  for (Index i = 1; i < n; ++i) max = x[at(i)] > max ? x[at(i)] : max;
  A sum = 0;
  for (Index i = 0; i < n; ++i) {
    y[i] = exp_of(x[at(i)] - max);
    sum += y[i];
  }
  for (Index i = 0; i < n; ++i) y[i] /= sum;
  return max + std::log(sum);
}
template <class A>
A softmax(const A* x, Index n, A* y) {
  return softmax_at(
      x, n, [](Index i) { return i; }, y);
}

// Finds the best scores, one after the other.
template <class A>
class Best {
 public:
  explicit Best(Index n) : open_(static_cast<std::size_t>(n)) {}

  void open(Index begin, Index end, bool value = true) {
    std::fill(open_.begin() + begin, open_.begin() + end, value);
  }
  // Of the open ones in [begin, end) the best, which is then closed; of equal ones the first. Never −1 where
  // one is open, whatever the scores are.
  Index take(const A* scores, Index begin, Index end) {
    Index found = -1;
    for (Index i = begin; i < end; ++i) {
      if (open_[static_cast<std::size_t>(i)] && (found < 0 || scores[i] > scores[found])) found = i;
    }
    if (found >= 0) open_[static_cast<std::size_t>(found)] = false;
    return found;
  }

 private:
  std::vector<char> open_;
};

inline bool is_counted(const Tensor& counted, Index row) {
  return !counted.defined() || counted.data<std::uint8_t>()[row] != 0;
}

}  // namespace weft::ops::cpu
