#include "ops/attention.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

void check(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
           const char* op) {
  check_floating(q, op, "q");
  check_like(v, k, op, "v");
  WEFT_CHECK(q.rank() == 3 && k.rank() == 3 && k.dtype() == q.dtype() && k.dim(1) == q.dim(1),
             "{}: q {}, k {}", op, describe(q), describe(k));
  const std::int64_t d = options.head_dim;
  WEFT_CHECK(d > 0 && q.columns() % d == 0 && k.columns() % d == 0 && k.columns() > 0 &&
                 q.columns() % k.columns() == 0,
             "{}: head_dim {}, q {}, k {}", op, d, describe(q), describe(k));
  WEFT_CHECK(options.dropout >= 0 && options.dropout < 1, "{}: dropout {} is not in [0, 1)", op,
             options.dropout);
  if (options.dropout > 0) check_vector(options.sample_ids, q.dim(1), DType::kI64, op, "sample_ids");
  WEFT_CHECK(options.window >= 0 && (options.window == 0 || options.causal) && options.soft_cap >= 0,
             "{}: window {} (causal {}), soft cap {}", op, options.window, options.causal, options.soft_cap);
  const Tensor& first = options.first_keys;
  WEFT_CHECK(!first.defined() || (first.dtype() == DType::kI32 && first.shape() == Shape{q.dim(1), q.dim(0)}),
             "{}: first_keys {} for q {}", op, describe(first), describe(q));
  if (options.sinks.defined()) {
    check_vector(options.sinks, q.columns() / d, accumulator_of(q.dtype()), op, "sinks");
  }
}

Shape statistics(const Tensor& q, const AttentionOptions& options) {
  return {q.dim(1), q.columns() / options.head_dim, q.dim(0)};
}

}  // namespace

AttentionResult attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionOptions& options) {
  check(q, k, v, options, "attention");
  AttentionResult result;
  result.out = lane.alloc(q.dtype(), q.shape(), "attention result");
  result.lse = lane.alloc(accumulator_of(q.dtype()), statistics(q, options), "attention log-sum-exp");
  const Tensor scratch =
      lane.alloc(DType::kU8, {WEFT_OPS_SIZE(lane, attention_scratch, q, k, options)}, "attention scratch");
  WEFT_OPS_DISPATCH(lane, attention, q, k, v, options, result, scratch);
  return result;
}

void attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionResult& forward, const AttentionOptions& options, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, const Tensor& dsinks) {
  check(q, k, v, options, "attention_backward");
  WEFT_CHECK(dsinks.defined() == options.sinks.defined(), "attention_backward: sinks {}, dsinks {}",
             describe(options.sinks), describe(dsinks));
  if (dsinks.defined()) check_like(dsinks, options.sinks, "attention_backward", "dsinks");
  check_like(dout, q, "attention_backward", "dout");
  check_like(forward.out, q, "attention_backward", "out");
  check_like(dq, q, "attention_backward", "dq");
  check_like(dk, k, "attention_backward", "dk");
  check_like(dv, v, "attention_backward", "dv");
  WEFT_CHECK(forward.lse.defined() && forward.lse.shape() == statistics(q, options) &&
                 forward.lse.dtype() == accumulator_of(q.dtype()) && forward.lse.contiguous(),
             "attention_backward: lse {} for q {}", describe(forward.lse), describe(q));
  const Tensor scratch = lane.alloc(
      DType::kU8, {WEFT_OPS_SIZE(lane, attention_backward_scratch, q, k, options)}, "attention scratch");
  WEFT_OPS_DISPATCH(lane, attention_backward, dout, q, k, v, forward, options, dq, dk, dv, dsinks, scratch);
}

}  // namespace weft::ops
