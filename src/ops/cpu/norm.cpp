#include <cmath>

#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

// Sums of a row go to 16 lanes (element j to lane j % 16), so their order is fixed and the loops vectorise.
constexpr Index kLanes = 16;

template <class A>
A total(const A (&lanes)[kLanes]) {
  A sums[kLanes];
  for (Index l = 0; l < kLanes; ++l) sums[l] = lanes[l];
  for (Index half = kLanes / 2; half > 0; half /= 2) {
    for (Index l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}

// Σ f(j) over a row.
template <class A, class F>
A sum_row(Index n, const F& f) {
  A lanes[kLanes] = {};
  Index j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (Index l = 0; l < kLanes; ++l) lanes[l] += f(j + l);
  }
  for (Index l = 0; j + l < n; ++l) lanes[l] += f(j + l);
  return total(lanes);
}

template <class A>
struct TwoSums {
  A first, second;
};

// Σ f(j).first and Σ f(j).second in one pass.
template <class A, class F>
TwoSums<A> two_sums_row(Index n, const F& f) {
  A first[kLanes] = {}, second[kLanes] = {};
  Index j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (Index l = 0; l < kLanes; ++l) {
      const TwoSums<A> v = f(j + l);
      first[l] += v.first;
      second[l] += v.second;
    }
  }
  for (Index l = 0; j + l < n; ++l) {
    const TwoSums<A> v = f(j + l);
    first[l] += v.first;
    second[l] += v.second;
  }
  return {total(first), total(second)};
}

}  // namespace

void norm(Lane& lane, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
          const NormResult& result) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index h = x.columns();
    const bool centred = result.mean.defined();
    const T* __restrict w = weight.data<T>();
    const T* __restrict b = centred ? bias.data<T>() : nullptr;
    for_rows(lane, x.rows(), h, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const T* __restrict in = x.data<T>() + r * x.ld();
        T* __restrict out = result.y.data<T>() + r * result.y.ld();
        if (centred) {
          const A mean = sum_row<A>(h, [&](Index j) { return to_acc(in[j]); }) / static_cast<A>(h);
          // The second pass reads the row from cache; one pass would lose digits where |mean| is large.
          const A variance = sum_row<A>(h,
                                        [&](Index j) {
                                          const A d = to_acc(in[j]) - mean;
                                          return d * d;
                                        }) /
                             static_cast<A>(h);
          const A rstd = A{1} / std::sqrt(variance + static_cast<A>(eps));
          for (Index j = 0; j < h; ++j) {
            out[j] = from_acc<T>((to_acc(in[j]) - mean) * rstd * to_acc(w[j]) + to_acc(b[j]));
          }
          result.mean.data<A>()[r] = mean;
          result.rstd.data<A>()[r] = rstd;
        } else {
          const A square =
              sum_row<A>(h, [&](Index j) { return to_acc(in[j]) * to_acc(in[j]); }) / static_cast<A>(h);
          const A rstd = A{1} / std::sqrt(square + static_cast<A>(eps));
          for (Index j = 0; j < h; ++j) out[j] = from_acc<T>(to_acc(in[j]) * rstd * to_acc(w[j]));
          result.rstd.data<A>()[r] = rstd;
        }
      }
    });
  });
}

std::int64_t norm_backward_chunks(const Lane&, std::int64_t rows, std::int64_t) {
  return RowRanges(rows).count;
}

// With x̂ = (x − mean) · rstd and g = dy · w:  dx = rstd · (g − x̂ · mean(g x̂) − mean(g)), the last term for
// LayerNorm.
void norm_backward(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                   const Tensor& rstd, const Tensor& dresidual, const NormGradients& gradients,
                   const Tensor& dx, const Tensor& scratch) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index h = x.columns();
    const bool centred = mean.defined();
    const T* __restrict w = weight.data<T>();
    const RowRanges ranges(x.rows());
    A* const weight_sums = scratch.data<A>();
    A* const bias_sums = weight_sums + ranges.count * h;
    lane.workers.parallel_for(ranges.count, 1, [&](Index range, Index) {
      A* __restrict dw = weight_sums + range * h;
      A* __restrict db = bias_sums + range * h;
      std::fill(dw, dw + h, A{0});
      if (centred) std::fill(db, db + h, A{0});
      for (Index r = ranges.begin(range); r < ranges.end(range); ++r) {
        const T* __restrict in = x.data<T>() + r * x.ld();
        const T* __restrict grad = dy.data<T>() + r * dy.ld();
        const A s = rstd.data<A>()[r], m = centred ? mean.data<A>()[r] : A{0};
        const TwoSums<A> sums = two_sums_row<A>(h, [&](Index j) {
          const A g = to_acc(grad[j]) * to_acc(w[j]);
          return TwoSums<A>{g * ((to_acc(in[j]) - m) * s), g};
        });
        const A along = sums.first / static_cast<A>(h),
                mean_g = centred ? sums.second / static_cast<A>(h) : A{0};
        T* __restrict out = dx.data<T>() + r * dx.ld();
        const T* residual = dresidual.defined() ? dresidual.data<T>() + r * dresidual.ld() : nullptr;
        const auto row = [&](auto has_bias, auto has_residual) {
          for (Index j = 0; j < h; ++j) {
            const A d = to_acc(grad[j]), normal = (to_acc(in[j]) - m) * s;
            A value = s * (d * to_acc(w[j]) - normal * along - mean_g);
            if constexpr (has_residual) value += to_acc(residual[j]);
            out[j] = from_acc<T>(value);
            dw[j] += d * normal;
            if constexpr (has_bias) db[j] += d;
          }
        };
        constexpr std::true_type kYes;
        constexpr std::false_type kNo;
        if (centred) {
          residual != nullptr ? row(kYes, kYes) : row(kYes, kNo);
        } else {
          residual != nullptr ? row(kNo, kYes) : row(kNo, kNo);
        }
      }
    });
    const auto finish = [&](const A* sums, const Tensor& gradient) {
      if (gradient.defined()) reduce_rows(lane, sums, ranges.count, h, gradients.beta, gradient.data<A>());
    };
    finish(weight_sums, gradients.weight);
    if (centred) finish(bias_sums, gradients.bias);
  });
}

}  // namespace weft::ops::cpu
