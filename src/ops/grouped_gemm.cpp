#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/moe.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

void check_offsets(const Tensor& offsets, const char* op) {
  WEFT_CHECK(offsets.defined() && offsets.dtype() == DType::kI32 && offsets.rank() == 1 &&
                 offsets.elems() >= 2 && offsets.contiguous(),
             "{}: offsets are {}", op, describe(offsets));
}

// w [E, out, in] or [E · out, in] -> [E · out, in]
Tensor flat_weights(const Tensor& w, const Tensor& offsets, const char* op) {
  const std::int64_t experts = offsets.elems() - 1;
  WEFT_CHECK(w.defined() && is_floating(w.dtype()) && (w.rank() == 2 || w.rank() == 3) &&
                 (w.rank() == 2 ? w.dim(0) % experts == 0 : w.dim(0) == experts),
             "{}: weights {} of {} experts", op, describe(w), experts);
  return w.view({w.rows(), w.columns()});
}

void check_rows(const Tensor& x, std::int64_t columns, DType dtype, const char* op, const char* name) {
  WEFT_CHECK(x.defined() && x.rank() == 2 && x.dim(1) == columns && x.dtype() == dtype,
             "{}: {} is {}, expected {} [.., {}]", op, name, describe(x), name_of(dtype), columns);
}

void run(Lane& lane, const GroupedGemm& g) {
  if (g.c.elems() == 0) return;
  const Tensor scratch =
      lane.alloc(DType::kU8, {WEFT_OPS_SIZE(lane, grouped_gemm_scratch, g)}, "grouped_gemm scratch");
  WEFT_OPS_DISPATCH(lane, grouped_gemm, g, scratch);
}

}  // namespace

Tensor grouped_gemm_nt(Lane& lane, const Tensor& x, const Tensor& w, const Tensor& offsets) {
  check_offsets(offsets, "grouped_gemm_nt");
  const Tensor flat = flat_weights(w, offsets, "grouped_gemm_nt");
  check_rows(x, flat.dim(1), flat.dtype(), "grouped_gemm_nt", "x");
  Tensor y = lane.alloc(x.dtype(), {x.dim(0), flat.dim(0) / (offsets.elems() - 1)}, "grouped_gemm_nt result");
  run(lane, {Gemm::Form::kNT, x, flat, offsets, y, 0});
  return y;
}

Tensor grouped_gemm_nn(Lane& lane, const Tensor& dy, const Tensor& w, const Tensor& offsets) {
  check_offsets(offsets, "grouped_gemm_nn");
  const Tensor flat = flat_weights(w, offsets, "grouped_gemm_nn");
  check_rows(dy, flat.dim(0) / (offsets.elems() - 1), flat.dtype(), "grouped_gemm_nn", "dy");
  Tensor dx = lane.alloc(dy.dtype(), {dy.dim(0), flat.dim(1)}, "grouped_gemm_nn result");
  run(lane, {Gemm::Form::kNN, dy, flat, offsets, dx, 0});
  return dx;
}

void grouped_gemm_tn_accumulate(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& offsets,
                                const Tensor& dw, float beta) {
  WEFT_CHECK(beta == 0 || beta == 1, "grouped_gemm_tn: beta {} is neither 0 nor 1", beta);
  check_offsets(offsets, "grouped_gemm_tn");
  check_floating(dy, "grouped_gemm_tn", "dy");
  const Tensor flat = flat_weights(dw, offsets, "grouped_gemm_tn");
  WEFT_CHECK(flat.dtype() == accumulator_of(dy.dtype()) || flat.dtype() == dy.dtype(),
             "grouped_gemm_tn: dw {} for dy {}", describe(dw), describe(dy));
  check_rows(dy, flat.dim(0) / (offsets.elems() - 1), dy.dtype(), "grouped_gemm_tn", "dy");
  check_rows(x, flat.dim(1), dy.dtype(), "grouped_gemm_tn", "x");
  WEFT_CHECK(x.dim(0) == dy.dim(0), "grouped_gemm_tn: dy {} and x {}", describe(dy), describe(x));
  run(lane, {Gemm::Form::kTN, dy, x, offsets, flat, beta});
}

}  // namespace weft::ops
