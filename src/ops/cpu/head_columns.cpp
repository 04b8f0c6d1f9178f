#include <algorithm>

#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {

void copy_to_heads(Lane& lane, const Tensor& x, const Tensor& y, std::int64_t head_dim, std::int64_t first) {
  const Index d = x.columns(), heads = y.columns() / head_dim;
  visit_floating(x.dtype(), [&]<class T>(T) {
    for_rows(lane, x.rows(), heads * d, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const T* const from = x.data<T>() + r * x.ld();
        T* const to = y.data<T>() + r * y.ld() + first;
        for (Index h = 0; h < heads; ++h) std::copy_n(from, d, to + h * head_dim);
      }
    });
  });
}

void sum_of_heads(Lane& lane, const Tensor& y, std::int64_t head_dim, std::int64_t first, const Tensor& x) {
  const Index d = x.columns(), heads = y.columns() / head_dim;
  visit_floating(x.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    for_rows(lane, x.rows(), heads * d, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const T* const from = y.data<T>() + r * y.ld() + first;
        T* const to = x.data<T>() + r * x.ld();
        for (Index c = 0; c < d; ++c) {
          A sum{};
          for (Index h = 0; h < heads; ++h) sum += to_acc(from[h * head_dim + c]);
          to[c] = from_acc<T>(sum);
        }
      }
    });
  });
}

}  // namespace weft::ops::cpu
