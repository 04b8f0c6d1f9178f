#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/moe.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

void check_logits(const Tensor& logits, const RouterOptions& options, const char* op) {
  check_floating(logits, op, "logits");
  WEFT_CHECK(logits.rank() == 2 && logits.dtype() == accumulator_of(logits.dtype()), "{}: logits are {}", op,
             describe(logits));
  WEFT_CHECK(options.topk >= 1 && options.topk <= logits.dim(1), "{}: {} choices of {} experts", op,
             options.topk, logits.dim(1));
}

// Groups have the experts that a token may choose, and enough to be measured by.
void check_groups(std::int64_t experts, const RouterOptions& options, const char* op) {
  if (options.groups == 0) return;
  const bool sizes = options.groups > 0 && options.group_topk >= 1 && options.group_topk <= options.groups &&
                     experts % options.groups == 0;
  const std::int64_t each = sizes ? experts / options.groups : 0;
  const std::int64_t measured = sizes ? options.topk / options.group_topk : 0;
  WEFT_CHECK(sizes && measured >= 1 && measured <= each && options.group_topk * each >= options.topk,
             "{}: {} choices of {} experts, from {} of {} groups", op, options.topk, experts,
             options.group_topk, options.groups);
}

void check_counted(const Tensor& counted, const Tensor& logits, const char* op) {
  if (counted.defined()) check_vector(counted, logits.dim(0), DType::kU8, op, "counted");
}

// [n, k] i32
void check_experts(const Tensor& experts, const char* op) {
  WEFT_CHECK(
      experts.defined() && experts.dtype() == DType::kI32 && experts.rank() == 2 && experts.contiguous(),
      "{}: experts are {}", op, describe(experts));
}

void check_routing(const Routing& routing, const char* op) {
  check_experts(routing.experts, op);
  WEFT_CHECK(routing.probs.defined() && routing.probs.shape() == routing.experts.shape() &&
                 is_floating(routing.probs.dtype()) && routing.probs.contiguous(),
             "{}: weights {} of experts {}", op, describe(routing.probs), describe(routing.experts));
}

void check_sums(const Tensor& sums, std::int64_t experts, const char* op) {
  WEFT_CHECK(sums.defined() && sums.rank() == 2 && sums.dim(0) >= 1 && sums.dim(1) == 2 * experts + 2 &&
                 sums.dtype() == DType::kF64 && sums.contiguous(),
             "{}: sums are {} for {} experts", op, describe(sums), experts);
}

}  // namespace

Routing route(Lane& lane, const Tensor& logits, const Tensor& bias, const Tensor& counted,
              const RouterOptions& options) {
  check_logits(logits, options, "route");
  check_groups(logits.dim(1), options, "route");
  if (bias.defined()) check_vector(bias, logits.dim(1), logits.dtype(), "route", "bias");
  check_counted(counted, logits, "route");
  const Shape shape{logits.dim(0), options.topk};
  const Routing routing{lane.alloc(logits.dtype(), shape, "weights of experts"),
                        lane.alloc(DType::kI32, shape, "chosen experts")};
  WEFT_OPS_DISPATCH(lane, route, logits, bias, counted, options, routing);
  return routing;
}

Tensor route_backward(Lane& lane, const Tensor& dprobs, const Tensor& logits, const Routing& routing,
                      const RouterOptions& options) {
  check_logits(logits, options, "route_backward");
  check_experts(routing.experts, "route_backward");
  WEFT_CHECK(routing.experts.shape() == Shape({logits.dim(0), options.topk}),
             "route_backward: experts {} for logits {}", describe(routing.experts), describe(logits));
  WEFT_CHECK(dprobs.defined() && dprobs.dtype() == logits.dtype() &&
                 dprobs.shape() == routing.experts.shape() && dprobs.contiguous(),
             "route_backward: dprobs {} for logits {}", describe(dprobs), describe(logits));
  Tensor dlogits = lane.alloc(logits.dtype(), logits.shape(), "gradient of router logits");
  WEFT_OPS_DISPATCH(lane, route_backward, dprobs, logits, routing.experts, options, dlogits);
  return dlogits;
}

Tensor balance_sums(Lane& lane, const Tensor& logits, const Tensor& counted, std::int64_t groups,
                    const RouterOptions& options) {
  check_logits(logits, options, "balance_sums");
  check_counted(counted, logits, "balance_sums");
  WEFT_CHECK(groups >= 1, "balance_sums: {} groups", groups);
  Tensor sums = lane.alloc(DType::kF64, {groups, 2 * logits.dim(1) + 2}, "sums of router scores");
  const Tensor scratch =
      lane.alloc(DType::kF64, {WEFT_OPS_SIZE(lane, balance_sums_scratch, logits, groups)}, "router scratch");
  WEFT_OPS_DISPATCH(lane, balance_sums, logits, counted, options, sums, scratch);
  return sums;
}

void balance_backward(Lane& lane, const Tensor& logits, const Tensor& counted, const Tensor& sums,
                      const RouterOptions& options, const BalanceWeights& weights, const Tensor& dlogits) {
  check_logits(logits, options, "balance_backward");
  check_counted(counted, logits, "balance_backward");
  check_sums(sums, logits.dim(1), "balance_backward");
  check_like(dlogits, logits, "balance_backward", "dlogits");
  WEFT_OPS_DISPATCH(lane, balance_backward, logits, counted, sums, options, weights, dlogits);
}

void balance_losses(Lane& lane, const Tensor& sums, const RouterOptions& options, double weight,
                    const Tensor& out) {
  WEFT_CHECK(sums.defined() && sums.rank() == 2 && sums.dim(1) >= 4, "balance_losses: sums are {}",
             describe(sums));
  check_sums(sums, sums.dim(1) / 2 - 1, "balance_losses");
  check_vector(out, 2, DType::kF64, "balance_losses", "out");
  WEFT_OPS_DISPATCH(lane, balance_losses, sums, options, weight, out);
}

void count_experts(Lane& lane, const Tensor& experts, const Tensor& out) {
  check_experts(experts, "count_experts");
  WEFT_CHECK(out.defined() && out.dtype() == DType::kF64 && out.contiguous(), "count_experts: out is {}",
             describe(out));
  WEFT_OPS_DISPATCH(lane, count_experts, experts, out);
}

void drop_over_capacity(Lane& lane, const Routing& routing, const Tensor& places, std::int64_t num_experts,
                        std::int64_t capacity, bool by_position) {
  check_routing(routing, "drop_over_capacity");
  check_vector(places, routing.experts.dim(0), DType::kI32, "drop_over_capacity", "places");
  WEFT_CHECK(num_experts >= 1 && capacity >= 0, "drop_over_capacity: {} experts that take {}", num_experts,
             capacity);
  const Tensor scratch =
      lane.alloc(DType::kU8, {WEFT_OPS_SIZE(lane, drop_over_capacity_scratch, routing.experts, num_experts)},
                 "drop_over_capacity scratch");
  WEFT_OPS_DISPATCH(lane, drop_over_capacity, routing, places, num_experts, capacity, by_position, scratch);
}

}  // namespace weft::ops
