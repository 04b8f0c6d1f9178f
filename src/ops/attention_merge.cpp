#include "ops/attention_merge.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {

void merge_attention(Lane& lane, const AttentionResult& into, const AttentionResult& part) {
  check_floating(part.out, "merge_attention", "part");
  WEFT_CHECK(into.out.defined() && into.out.dtype() == accumulator_of(part.out.dtype()) &&
                 into.out.shape() == part.out.shape() && into.out.rank() == 3,
             "merge_attention: {} into {}", describe(part.out), describe(into.out));
  check_like(part.lse, into.lse, "merge_attention", "lse");
  WEFT_CHECK(into.lse.dtype() == into.out.dtype() && part.lse.contiguous() && into.lse.rank() == 3 &&
                 into.lse.dim(0) == into.out.dim(1) && into.lse.dim(2) == into.out.dim(0) &&
                 into.out.columns() % into.lse.dim(1) == 0,
             "merge_attention: log-sum-exp {} of {}", describe(into.lse), describe(into.out));
  WEFT_OPS_DISPATCH(lane, merge_attention, into, part);
}

}  // namespace weft::ops
