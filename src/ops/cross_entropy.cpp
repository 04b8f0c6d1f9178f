#include "ops/cross_entropy.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

void check_labels(const Tensor& labels, std::int64_t rows, const char* op) {
  WEFT_CHECK(
      labels.defined() && labels.dtype() == DType::kI32 && labels.rank() == 2 && labels.elems() == rows,
      "{}: labels are {} for {} rows", op, describe(labels), rows);
}

void check_options(const CrossEntropyOptions& options, const char* op) {
  WEFT_CHECK(options.vocabulary > 0 && options.first >= 0 && options.label_smoothing >= 0 &&
                 options.label_smoothing < 1 && (options.label_smoothing == 0 || options.vocabulary > 1),
             "{}: vocabulary {}, first {}, label smoothing {}", op, options.vocabulary, options.first,
             options.label_smoothing);
}

}  // namespace

CrossEntropyLocal cross_entropy_local(Lane& lane, const Tensor& logits, const Tensor& labels,
                                      const CrossEntropyOptions& options) {
  check_floating(logits, "cross_entropy_local", "logits");
  check_labels(labels, logits.rows(), "cross_entropy_local");
  check_options(options, "cross_entropy_local");
  CrossEntropyLocal local;
  local.max = lane.alloc(accumulator_of(logits.dtype()), {logits.rows()}, "cross_entropy maximum");
  local.sums = lane.alloc(accumulator_of(logits.dtype()), {3, logits.rows()}, "cross_entropy sums");
  WEFT_OPS_DISPATCH(lane, cross_entropy_local, logits, labels, options, local);
  return local;
}

void cross_entropy_rescale(Lane& lane, const CrossEntropyLocal& local, const Tensor& max) {
  check_floating(max, "cross_entropy_rescale", "max");
  check_vector(local.max, max.elems(), max.dtype(), "cross_entropy_rescale", "local.max");
  check_vector(local.sums, 3 * max.elems(), max.dtype(), "cross_entropy_rescale", "local.sums");
  WEFT_OPS_DISPATCH(lane, cross_entropy_rescale, local, max);
}

CrossEntropyResult cross_entropy_finish(Lane& lane, const Tensor& max, const Tensor& sums,
                                        const Tensor& labels, const CrossEntropyOptions& options) {
  check_floating(max, "cross_entropy_finish", "max");
  check_vector(sums, 3 * max.elems(), max.dtype(), "cross_entropy_finish", "sums");
  check_labels(labels, max.elems(), "cross_entropy_finish");
  check_options(options, "cross_entropy_finish");
  CrossEntropyResult result;
  result.losses = lane.alloc(max.dtype(), {max.elems()}, "losses");
  result.lse = lane.alloc(max.dtype(), {max.elems()}, "log-sum-exp of logits");
  WEFT_OPS_DISPATCH(lane, cross_entropy_finish, max, sums, labels, options, result);
  return result;
}

void cross_entropy_backward(Lane& lane, const Tensor& logits, const Tensor& lse, const Tensor& labels,
                            const CrossEntropyOptions& options, double scale) {
  check_floating(logits, "cross_entropy_backward", "logits");
  check_vector(lse, logits.rows(), accumulator_of(logits.dtype()), "cross_entropy_backward", "lse");
  check_labels(labels, logits.rows(), "cross_entropy_backward");
  check_options(options, "cross_entropy_backward");
  WEFT_OPS_DISPATCH(lane, cross_entropy_backward, logits, lse, labels, options, scale);
}

CrossEntropyResult cross_entropy_fused(Lane& lane, const Tensor& logits, const Tensor& labels,
                                       const CrossEntropyOptions& options, double scale) {
  check_floating(logits, "cross_entropy_fused", "logits");
  check_labels(labels, logits.rows(), "cross_entropy_fused");
  check_options(options, "cross_entropy_fused");
  WEFT_CHECK(options.first == 0 && options.vocabulary <= logits.columns(),
             "cross_entropy_fused: logits {} from column {} are only a part of the vocabulary of {}",
             describe(logits), options.first, options.vocabulary);
  const DType wide = accumulator_of(logits.dtype());
  CrossEntropyResult result;
  result.losses = lane.alloc(wide, {logits.rows()}, "losses");
  result.lse = lane.alloc(wide, {logits.rows()}, "log-sum-exp of logits");
  const Tensor scratch =
      lane.alloc(wide, {WEFT_OPS_SIZE(lane, cross_entropy_fused_scratch, logits)}, "cross_entropy scratch");
  WEFT_OPS_DISPATCH(lane, cross_entropy_fused, logits, labels, options, scale, result, scratch);
  return result;
}

}  // namespace weft::ops
