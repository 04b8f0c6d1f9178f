#include <algorithm>
#include <vector>

#include "ops/cpu/router_scores.hpp"
#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

// One row at a time, with memory for it.
template <class A>
class Chooser {
 public:
  Chooser(Index experts, const RouterOptions& options)
      : experts_(experts),
        options_(options),
        scores_(static_cast<std::size_t>(experts)),
        ranked_(static_cast<std::size_t>(experts)),
        group_scores_(static_cast<std::size_t>(std::max(options.groups, 0))),
        best_(experts),
        best_groups_(options.groups) {}

  void choose(const A* logits, const A* bias, A* probs, std::int32_t* chosen) {
    const Index k = options_.topk;
    score(logits);
    for (Index e = 0; e < experts_; ++e) ranked_[at(e)] = scores_[at(e)] + (bias == nullptr ? A{0} : bias[e]);
    best_.open(0, experts_);
    if (options_.groups > 0) close_groups();
    for (Index j = 0; j < k; ++j)
      chosen[j] = static_cast<std::int32_t>(best_.take(ranked_.data(), 0, experts_));
    weigh(logits, chosen, probs);
    if (options_.scale == 1) return;
    for (Index j = 0; j < k; ++j) probs[j] *= static_cast<A>(options_.scale);
  }

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  void score(const A* logits) {
    switch (options_.score) {
      case RouterScore::kSoftmax:
        std::copy_n(logits, experts_, scores_.data());
        break;
      case RouterScore::kSoftmaxOverAll:
        softmax(logits, experts_, scores_.data());
        break;
      case RouterScore::kSigmoid:
        for (Index e = 0; e < experts_; ++e) scores_[at(e)] = sigmoid_of(logits[e]);
        break;
    }
  }

  // Leaves the experts of the best groups open.
  void close_groups() {
    const Index each = experts_ / options_.groups, measured = options_.topk / options_.group_topk;
    for (Index g = 0; g < options_.groups; ++g) {
      A sum = 0;
      for (Index i = 0; i < measured; ++i) {
        sum += ranked_[at(best_.take(ranked_.data(), g * each, (g + 1) * each))];
      }
      group_scores_[at(g)] = sum;
    }
    best_.open(0, experts_, false);
    best_groups_.open(0, options_.groups);
    for (Index i = 0; i < options_.group_topk; ++i) {
      const Index g = best_groups_.take(group_scores_.data(), 0, options_.groups);
      best_.open(g * each, (g + 1) * each);
    }
  }

  void weigh(const A* logits, const std::int32_t* chosen, A* probs) {
    const Index k = options_.topk;
    if (options_.score == RouterScore::kSoftmax) {
      softmax_at(
          logits, k, [&](Index j) { return chosen[j]; }, probs);
      return;
    }
    A sum = 0;
    for (Index j = 0; j < k; ++j) sum += probs[j] = scores_[at(chosen[j])];
    if (options_.score != RouterScore::kSigmoid || k == 1) return;
    for (Index j = 0; j < k; ++j) probs[j] /= sum + static_cast<A>(kScoreEpsilon);
  }

  Index experts_;
  RouterOptions options_;
  std::vector<A> scores_, ranked_, group_scores_;  // ranked: with the bias
  Best<A> best_, best_groups_;
};

// The derivative by the logits, one row at a time, with memory for it.
template <class A>
class RouteGradient {
 public:
  RouteGradient(Index experts, const RouterOptions& options)
      : experts_(experts),
        options_(options),
        weights_(static_cast<std::size_t>(std::max<Index>(experts, options.topk))),
        dprobs_(static_cast<std::size_t>(options.topk)) {}

  void write(const A* dprobs, const A* logits, const std::int32_t* experts, A* dlogits) {
    std::fill_n(dlogits, experts_, A{0});
    chosen_.clear();
    for (Index j = 0; j < options_.topk; ++j) {
      if (experts[j] < 0) continue;
      dprobs_[chosen_.size()] = dprobs[j] * static_cast<A>(options_.scale);
      chosen_.push_back(experts[j]);
    }
    if (chosen_.empty()) return;
    switch (options_.score) {
      case RouterScore::kSoftmax:
        return of_chosen(logits, dlogits);
      case RouterScore::kSoftmaxOverAll:
        return of_all(logits, dlogits);
      case RouterScore::kSigmoid:
        return of_sigmoids(logits, dlogits);
    }
  }

 private:
  void of_chosen(const A* logits, A* dlogits) {
    const auto n = static_cast<Index>(chosen_.size());
    softmax_at(
        logits, n, [&](Index j) { return chosen_[static_cast<std::size_t>(j)]; }, weights_.data());
    A mean = 0;
    for (std::size_t j = 0; j < chosen_.size(); ++j) mean += weights_[j] * dprobs_[j];
    for (std::size_t j = 0; j < chosen_.size(); ++j) {
      dlogits[chosen_[j]] = weights_[j] * (dprobs_[j] - mean);
    }
  }

  void of_all(const A* logits, A* dlogits) {
    softmax(logits, experts_, weights_.data());
    A mean = 0;
    for (std::size_t j = 0; j < chosen_.size(); ++j) {
      mean += weights_[static_cast<std::size_t>(chosen_[j])] * dprobs_[j];
      dlogits[chosen_[j]] = dprobs_[j];
    }
    for (Index e = 0; e < experts_; ++e) {
      dlogits[e] = weights_[static_cast<std::size_t>(e)] * (dlogits[e] - mean);
    }
  }

  void of_sigmoids(const A* logits, A* dlogits) {
    const bool normalised = options_.topk > 1;
    A sum = 0, mean = 0;
    for (std::size_t j = 0; j < chosen_.size(); ++j) sum += weights_[j] = sigmoid_of(logits[chosen_[j]]);
    sum += static_cast<A>(kScoreEpsilon);
    for (std::size_t j = 0; j < chosen_.size(); ++j) mean += weights_[j] / sum * dprobs_[j];
    for (std::size_t j = 0; j < chosen_.size(); ++j) {
      const A dscore = normalised ? (dprobs_[j] - mean) / sum : dprobs_[j];
      dlogits[chosen_[j]] = dscore * weights_[j] * (A{1} - weights_[j]);
    }
  }

  Index experts_;
  RouterOptions options_;
  std::vector<A> weights_, dprobs_;   // dprobs: those of chosen_, times the scale
  std::vector<std::int32_t> chosen_;  // without −1
};

}  // namespace

void route(Lane& lane, const Tensor& logits, const Tensor& bias, const Tensor& counted,
           const RouterOptions& options, const Routing& routing) {
  visit_floating(logits.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index experts = logits.dim(1), k = options.topk;
    const A* offset = bias.defined() ? bias.data<A>() : nullptr;
    for_rows(lane, logits.dim(0), experts, [&](Index begin, Index end) {
      Chooser<A> chooser(experts, options);
      for (Index r = begin; r < end; ++r) {
        A* probs = routing.probs.data<A>() + r * k;
        std::int32_t* chosen = routing.experts.data<std::int32_t>() + r * k;
        if (is_counted(counted, r)) {
          chooser.choose(logits.data<A>() + r * logits.ld(), offset, probs, chosen);
        } else {
          std::fill_n(probs, k, A{0});
          std::fill_n(chosen, k, -1);
        }
      }
    });
  });
}

void route_backward(Lane& lane, const Tensor& dprobs, const Tensor& logits, const Tensor& experts,
                    const RouterOptions& options, const Tensor& dlogits) {
  visit_floating(logits.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index n = logits.dim(1), k = options.topk;
    for_rows(lane, logits.dim(0), n, [&](Index begin, Index end) {
      RouteGradient<A> gradient(n, options);
      for (Index r = begin; r < end; ++r) {
        gradient.write(dprobs.data<A>() + r * k, logits.data<A>() + r * logits.ld(),
                       experts.data<std::int32_t>() + r * k, dlogits.data<A>() + r * dlogits.ld());
      }
    });
  });
}

void count_experts(Lane&, const Tensor& experts, const Tensor& out) {
  double* counts = out.data<double>();
  for (const std::int32_t e : experts.values<std::int32_t>()) {
    WEFT_CHECK(e < out.elems(), "expert {} of {}", e, out.elems());
    if (e >= 0) counts[e] += 1;
  }
}

// All choices by number, and where those of each expert begin.
std::int64_t drop_over_capacity_scratch(const Lane&, const Tensor& experts, std::int64_t num_experts) {
  return (experts.elems() + num_experts + 1) * static_cast<Index>(sizeof(std::int32_t));
}

void drop_over_capacity(Lane& lane, const Routing& routing, const Tensor& places, std::int64_t num_experts,
                        std::int64_t capacity, bool by_position, const Tensor& scratch) {
  const Index k = routing.experts.dim(1), pairs = routing.experts.elems();
  std::int32_t* experts = routing.experts.data<std::int32_t>();
  const std::int32_t* place = places.data<std::int32_t>();
  auto* first = reinterpret_cast<std::int32_t*>(scratch.raw());
  std::int32_t* list = first + num_experts + 1;
  // first[e]: the end of what has been listed of e; in the end the beginning of e + 1.
  std::fill_n(first, num_experts + 1, 0);
  for (Index i = 0; i < pairs; ++i) {
    WEFT_CHECK(experts[i] < num_experts, "expert {} of {}", experts[i], num_experts);
    if (experts[i] >= 0) ++first[experts[i] + 1];
  }
  for (Index e = 0; e < num_experts; ++e) first[e + 1] += first[e];
  for (Index i = 0; i < pairs; ++i) {
    if (experts[i] >= 0) list[first[experts[i]]++] = static_cast<std::int32_t>(i);
  }
  visit_floating(routing.probs.dtype(), [&]<class T>(T) {
    T* probs = routing.probs.data<T>();
    const auto before = [&](std::int32_t a, std::int32_t b) {
      if (!by_position) {
        const auto x = to_acc(probs[a]), y = to_acc(probs[b]);
        // What is not a number stands behind all numbers: an order must hold for any weights.
        if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
        if (x > y) return true;
        if (y > x) return false;
      }
      if (place[a / k] != place[b / k]) return place[a / k] < place[b / k];
      return a % k != b % k ? a % k < b % k : a < b;
    };
    lane.workers.parallel_for(num_experts, 1, [&](Index e, Index) {
      std::int32_t* begin = list + (e == 0 ? 0 : first[e - 1]);
      std::int32_t* end = list + first[e];
      if (end - begin <= capacity) return;
      std::nth_element(begin, begin + capacity, end, before);
      for (std::int32_t* pair = begin + capacity; pair != end; ++pair) {
        experts[*pair] = -1;
        probs[*pair] = T{};
      }
    });
  });
}

}  // namespace weft::ops::cpu
