#include <cmath>
#include <limits>

#include "ops/cpu/math.hpp"
#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

constexpr Index kBlock = 512;  // logits looked at while they are in L1
constexpr Index kLanes = 16;

// Columns of these logits that are vocabulary, not padding.
Index real_columns(const Tensor& logits, const CrossEntropyOptions& options) {
  return std::clamp<Index>(options.vocabulary - options.first, 0, logits.columns());
}

// labels [b, s] of row r of [s, b].
struct RowLabels {
  explicit RowLabels(const Tensor& labels)
      : data(labels.data<std::int32_t>()), batch(labels.dim(0)), length(labels.ld()) {}
  Index operator[](Index r) const { return data[r % batch * length + r / batch]; }
  const std::int32_t* data;
  Index batch, length;
};

template <class A>
struct RowSums {
  A max = -std::numeric_limits<A>::infinity();
  A exp_sum = 0;   // relative to max
  double sum = 0;  // of the logits
};

template <class A>
A max_of(const A* x, Index n, A start) {
  A lanes[kLanes];
  for (Index l = 0; l < kLanes; ++l) lanes[l] = start;
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (Index l = 0; l < kLanes; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  }
  for (Index l = 0; i + l < n; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  A best = start;
  for (Index l = 0; l < kLanes; ++l) best = lanes[l] > best ? lanes[l] : best;
  return best;
}

// One online pass: when a block raises the maximum, the sum so far is rescaled.
template <class T, class A = accumulator_t<T>>
RowSums<A> row_sums(const T* row, Index n, bool with_sum) {
  RowSums<A> s;
  A x[kBlock];
  for (Index begin = 0; begin < n; begin += kBlock) {
    const Index count = std::min(kBlock, n - begin);
    convert(row + begin, x, count);
    const A max = max_of(x, count, s.max);
    if (max > s.max) {
      s.exp_sum *= exp_of(s.max - max);  // 0 at the first block, where s.max is −infinity
      s.max = max;
    }
    // Nothing but −infinities yet: any finite base gives exp(−infinity − base) = 0.
    const A base = s.max == -std::numeric_limits<A>::infinity() ? A{0} : s.max;
    A exps[kLanes] = {}, sums[kLanes] = {};
    Index i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (Index l = 0; l < kLanes; ++l) exps[l] += exp_of(x[i + l] - base);
      if (with_sum) {
        for (Index l = 0; l < kLanes; ++l) sums[l] += x[i + l];
      }
    }
    for (Index l = 0; i + l < count; ++l) {
      exps[l] += exp_of(x[i + l] - base);
      if (with_sum) sums[l] += x[i + l];
    }
    A exp_sum = 0, sum = 0;
    for (Index l = 0; l < kLanes; ++l) exp_sum += exps[l], sum += sums[l];
    s.exp_sum += exp_sum;
    s.sum += static_cast<double>(sum);
  }
  return s;
}

}  // namespace

void cross_entropy_local(Lane& lane, const Tensor& logits, const Tensor& labels,
                         const CrossEntropyOptions& options, const CrossEntropyLocal& local) {
  visit_floating(logits.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index rows = logits.rows(), columns = real_columns(logits, options);
    const RowLabels label_of(labels);
    A* sums = local.sums.data<A>();
    for_rows(lane, rows, logits.columns(), [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const T* row = logits.data<T>() + r * logits.ld();
        const RowSums<A> s = row_sums(row, columns, options.label_smoothing != 0);
        const Index label = label_of[r] < 0 ? -1 : label_of[r] - options.first;
        local.max.data<A>()[r] = s.max;
        sums[r] = s.exp_sum;
        sums[rows + r] = label >= 0 && label < columns ? to_acc(row[label]) : A{0};
        sums[2 * rows + r] = static_cast<A>(s.sum);
      }
    });
  });
}

void cross_entropy_rescale(Lane& lane, const CrossEntropyLocal& local, const Tensor& max) {
  visit_floating(max.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    A* sums = local.sums.data<A>();
    const A* own = local.max.data<A>();
    const A* global = max.data<A>();
    lane.workers.parallel_for(max.elems(), kSpan, [&](Index begin, Index end) {
      // Equal maxima need no factor (and −infinity from padding alone has none).
      for (Index r = begin; r < end; ++r) {
        if (own[r] != global[r]) sums[r] *= std::exp(own[r] - global[r]);
      }
    });
  });
}

// With n = vocabulary and α = label_smoothing:
//   loss = (1 − α) nll_y + α / (n − 1) Σ_{v ≠ y} nll_v + z lse²,   nll_v = lse − logit_v
void cross_entropy_finish(Lane& lane, const Tensor& max, const Tensor& sums, const Tensor& labels,
                          const CrossEntropyOptions& options, const CrossEntropyResult& result) {
  visit_floating(max.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index rows = max.elems();
    const A* s = sums.data<A>();
    const RowLabels label_of(labels);
    const double alpha = options.label_smoothing, n = static_cast<double>(options.vocabulary);
    lane.workers.parallel_for(rows, 1024, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const double lse = static_cast<double>(max.data<A>()[r]) + std::log(static_cast<double>(s[r]));
        result.lse.data<A>()[r] = static_cast<A>(lse);
        if (label_of[r] < 0) {
          result.losses.data<A>()[r] = 0;
          continue;
        }
        const double nll = lse - static_cast<double>(s[rows + r]);
        double loss = nll;
        if (alpha != 0) {
          const double others = n * lse - static_cast<double>(s[2 * rows + r]) - nll;
          loss = (1 - alpha) * nll + alpha / (n - 1) * others;
        }
        loss += options.z_loss * lse * lse;
        result.losses.data<A>()[r] = static_cast<A>(loss);
      }
    });
  });
}

// d loss / d logit_v = softmax_v (1 + 2 z lse) − (v = y ? 1 − α : α / (n − 1))
void cross_entropy_backward(Lane& lane, const Tensor& logits, const Tensor& lse, const Tensor& labels,
                            const CrossEntropyOptions& options, double scale) {
  visit_floating(logits.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index columns = real_columns(logits, options);
    const RowLabels label_of(labels);
    const double alpha = options.label_smoothing;
    const auto off =
        static_cast<A>(alpha == 0 ? 0 : scale * alpha / static_cast<double>(options.vocabulary - 1));
    for_rows(lane, logits.rows(), logits.columns(), [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        T* row = logits.data<T>() + r * logits.ld();
        if (label_of[r] < 0) {
          std::fill_n(row, logits.columns(), T{});
          continue;
        }
        const A row_lse = lse.data<A>()[r];
        const A factor = static_cast<A>(scale * (1 + 2 * options.z_loss * static_cast<double>(row_lse)));
        const Index label = label_of[r] - options.first;
        const bool here = label >= 0 && label < columns;
        const A at_label =
            here ? exp_of(to_acc(row[label]) - row_lse) * factor - static_cast<A>(scale * (1 - alpha)) : A{0};
        for (Index j = 0; j < columns; ++j)
          row[j] = from_acc<T>(exp_of(to_acc(row[j]) - row_lse) * factor - off);
        if (here) row[label] = from_acc<T>(at_label);
        std::fill(row + columns, row + logits.columns(), T{});
      }
    });
  });
}

std::int64_t cross_entropy_fused_scratch(const Lane&, const Tensor& logits) {
  return 4 * logits.rows();
}

void cross_entropy_fused(Lane& lane, const Tensor& logits, const Tensor& labels,
                         const CrossEntropyOptions& options, double scale, const CrossEntropyResult& result,
                         const Tensor& scratch) {
  const Index rows = logits.rows();
  const CrossEntropyLocal local{scratch.slice(0, rows), scratch.slice(rows, 3 * rows).view({3, rows})};
  cpu::cross_entropy_local(lane, logits, labels, options, local);
  cpu::cross_entropy_finish(lane, local.max, local.sums, labels, options, result);
  cpu::cross_entropy_backward(lane, logits, result.lse, labels, options, scale);
}

}  // namespace weft::ops::cpu
