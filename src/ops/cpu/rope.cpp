#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {

void rope_in_place(Lane& lane, const Tensor& x, const RopeTable& table, const Tensor& positions, int head_dim,
                   bool inverse) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index half = table.cos.columns(), heads = x.columns() / head_dim, batch = x.dim(1);
    const Index rows = table.cos.rows();
    const std::int32_t* row_of = positions.defined() ? positions.data<std::int32_t>() : nullptr;
    const A sign = inverse ? A{-1} : A{1};
    for_rows(lane, x.rows(), x.columns(), [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const Index position = row_of != nullptr ? row_of[r] : r / batch;
        WEFT_CHECK(position >= 0 && position < rows, "rope: position {} of a table of {}", position, rows);
        const A* __restrict cos = table.cos.data<A>() + position * table.cos.ld();
        const A* __restrict sin = table.sin.data<A>() + position * table.sin.ld();
        for (Index head = 0; head < heads; ++head) {
          T* p = x.data<T>() + r * x.ld() + head * head_dim;
          if (table.interleaved) {
            for (Index i = 0; i < half; ++i) {
              const A u = to_acc(p[2 * i]), v = to_acc(p[2 * i + 1]), s = sign * sin[i];
              p[2 * i] = from_acc<T>(u * cos[i] - v * s);
              p[2 * i + 1] = from_acc<T>(v * cos[i] + u * s);
            }
          } else {
            T* __restrict first = p;
            T* __restrict second = p + half;
            for (Index i = 0; i < half; ++i) {
              const A u = to_acc(first[i]), v = to_acc(second[i]), s = sign * sin[i];
              first[i] = from_acc<T>(u * cos[i] - v * s);
              second[i] = from_acc<T>(v * cos[i] + u * s);
            }
          }
        }
      }
    });
  });
}

}  // namespace weft::ops::cpu
