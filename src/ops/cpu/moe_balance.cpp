#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/router_scores.hpp"
#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

// The scores of a row that the losses are about; returns Σ sigmoid (+ 1e-20) for sigmoids.
template <class A>
A balance_scores(const RouterOptions& options, const A* logits, Index n, A* scores) {
  if (options.score != RouterScore::kSigmoid) {
    softmax(logits, n, scores);
    return A{1};
  }
  A sum = 0;
  for (Index e = 0; e < n; ++e) sum += scores[e] = sigmoid_of(logits[e]);
  sum += static_cast<A>(kScoreEpsilon);
  for (Index e = 0; e < n; ++e) scores[e] /= sum;
  return sum;
}

// Each group is cut into this many pieces: enough for all workers, and few enough to be kept.
Index pieces_of_group(Index rows, Index groups) {
  return std::clamp<Index>(ceil_div(rows, 16 * groups), 1, ceil_div(64, groups));
}

// What the sums say of the groups and of the whole. Columns: [scores E | chosen E | tokens | Σ logsumexp²].
struct Balance {
  explicit Balance(const Tensor& of) : sums(of.data<double>()), columns(of.dim(1)), groups(of.dim(0)) {
    for (Index g = 0; g < groups; ++g) {
      tokens += of_group(g)[columns - 2];
      squares += of_group(g)[columns - 1];
      if (of_group(g)[columns - 2] > 0) ++filled;
    }
  }
  Index experts() const { return columns / 2 - 1; }
  const double* of_group(Index g) const { return sums + g * columns; }
  // The factor of Σ_e (Σ score · Σ chosen) of a group in the mean over groups; 0 for one without tokens.
  double factor(Index g, const RouterOptions& options) const {
    const double t = of_group(g)[columns - 2];
    if (t <= 0) return 0;
    return static_cast<double>(experts()) / (options.topk * t * t) / static_cast<double>(filled);
  }

  const double* sums;
  Index columns, groups, filled = 0;
  double tokens = 0, squares = 0;
};

}  // namespace

std::int64_t balance_sums_scratch(const Lane&, const Tensor& logits, std::int64_t groups) {
  return groups * pieces_of_group(logits.dim(0), groups) * (2 * logits.dim(1) + 2);
}

void balance_sums(Lane& lane, const Tensor& logits, const Tensor& counted, const RouterOptions& options,
                  const Tensor& sums, const Tensor& scratch) {
  visit_floating(logits.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index rows = logits.dim(0), n = logits.dim(1), groups = sums.dim(0), columns = 2 * n + 2;
    const Index pieces = pieces_of_group(rows, groups);
    const Index length = ceil_div(ceil_div(rows, groups), pieces);  // of a piece, in rows of its group
    double* partial = scratch.data<double>();
    lane.workers.parallel_for(groups * pieces, 1, [&](Index piece, Index) {
      double* sum = partial + piece * columns;
      std::fill_n(sum, columns, 0.0);
      std::vector<A> scores(static_cast<std::size_t>(n));
      Best<A> best(n);
      const Index first = piece % pieces * length;
      for (Index i = first; i < first + length; ++i) {
        const Index r = i * groups + piece / pieces;
        if (r >= rows) break;
        if (!is_counted(counted, r)) continue;
        const A* row = logits.data<A>() + r * logits.ld();
        const auto lse = static_cast<double>(softmax(row, n, scores.data()));
        balance_scores(options, row, n, scores.data());
        for (Index e = 0; e < n; ++e) sum[e] += static_cast<double>(scores[static_cast<std::size_t>(e)]);
        best.open(0, n);
        for (int j = 0; j < options.topk; ++j) sum[n + best.take(scores.data(), 0, n)] += 1;
        sum[2 * n] += 1;
        sum[2 * n + 1] += lse * lse;
      }
    });
    for (Index g = 0; g < groups; ++g) {
      double* out = sums.data<double>() + g * columns;
      std::fill_n(out, columns, 0.0);
      for (Index p = 0; p < pieces; ++p) {
        for (Index c = 0; c < columns; ++c) out[c] += partial[(g * pieces + p) * columns + c];
      }
    }
  });
}

void balance_backward(Lane& lane, const Tensor& logits, const Tensor& counted, const Tensor& sums,
                      const RouterOptions& options, const BalanceWeights& weights, const Tensor& dlogits) {
  const Balance balance(sums);
  visit_floating(logits.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index n = logits.dim(1);
    for_rows(lane, logits.dim(0), n, [&](Index begin, Index end) {
      std::vector<A> scores(static_cast<std::size_t>(n));
      for (Index r = begin; r < end; ++r) {
        if (!is_counted(counted, r)) continue;
        const A* row = logits.data<A>() + r * logits.ld();
        A* out = dlogits.data<A>() + r * dlogits.ld();
        if (weights.aux != 0) {
          const double factor = weights.aux * balance.factor(r % balance.groups, options);
          const double* chosen = balance.of_group(r % balance.groups) + n;
          const A sum = balance_scores(options, row, n, scores.data());
          double mean = 0;
          for (Index e = 0; e < n; ++e) {
            mean += chosen[e] * static_cast<double>(scores[static_cast<std::size_t>(e)]);
          }
          for (Index e = 0; e < n; ++e) {
            // d score / d logit without the part that all share: softmax's own, or σ' / Σσ.
            const A score = scores[static_cast<std::size_t>(e)];
            const A slope = options.score == RouterScore::kSigmoid ? score * (A{1} - score * sum) : score;
            out[e] += static_cast<A>(factor * (chosen[e] - mean)) * slope;
          }
        }
        if (weights.z != 0) {
          const A lse = softmax(row, n, scores.data());
          const auto factor =
              static_cast<A>(weights.z * 2 * static_cast<double>(lse) / std::max(balance.tokens, 1.0));
          for (Index e = 0; e < n; ++e) out[e] += factor * scores[static_cast<std::size_t>(e)];
        }
      }
    });
  });
}

void balance_losses(Lane&, const Tensor& sums, const RouterOptions& options, double weight,
                    const Tensor& out) {
  const Balance balance(sums);
  const Index n = balance.experts();
  double aux = 0;
  for (Index g = 0; g < balance.groups; ++g) {
    const double* of_group = balance.of_group(g);
    double product = 0;
    for (Index e = 0; e < n; ++e) product += of_group[e] * of_group[n + e];
    aux += balance.factor(g, options) * product;
  }
  out.data<double>()[0] += weight * aux;
  if (balance.tokens > 0) out.data<double>()[1] += weight * balance.squares / balance.tokens;
}

}  // namespace weft::ops::cpu
