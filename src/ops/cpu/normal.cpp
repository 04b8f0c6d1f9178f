#include "ops/normal.hpp"

#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {

void fill_normal(Lane& lane, const Tensor& x, RandomKey key, double std, const ElementRange& range) {
  const Index columns = x.rank() > 1 ? x.columns() : 1, rows = x.elems() / std::max<Index>(columns, 1);
  const Index ld = x.rank() > 1 ? x.ld() : 1;
  visit_floating(x.dtype(), [&]<class T>(T) {
    T* const data = x.data<T>();
    for_rows(lane, rows, columns, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const Index first = (range.first_row + r) * range.columns + range.first_column;
        for (Index c = 0; c < columns; ++c) {
          const double value = std * normal(key, static_cast<std::uint64_t>(first + c));
          data[r * ld + c] = from_acc<T>(static_cast<accumulator_t<T>>(value));
        }
      }
    });
  });
}

}  // namespace weft::ops::cpu
