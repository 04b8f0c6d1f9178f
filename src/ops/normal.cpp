#include "ops/normal.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {

void fill_normal(Lane& lane, const Tensor& x, RandomKey key, double std, const ElementRange& range) {
  check_floating(x, "fill_normal", "x");
  const std::int64_t columns = x.rank() > 1 ? x.columns() : 1;
  WEFT_CHECK(x.rank() <= 2 && range.first_row >= 0 && range.first_column >= 0 &&
                 range.first_column + columns <= range.columns,
             "fill_normal: {} at column {} of {}", describe(x), range.first_column, range.columns);
  WEFT_OPS_DISPATCH(lane, fill_normal, x, key, std, range);
}

}  // namespace weft::ops
