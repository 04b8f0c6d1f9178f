#include "ops/gemm.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

void run(Lane& lane, const char* op, const Gemm& g) {
  const auto n_inner = g.form == Gemm::Form::kNT ? g.b.columns() : g.b.rows();
  WEFT_CHECK(is_floating(g.a.dtype()) && g.a.dtype() == g.b.dtype(), "{}: operands {} and {}", op,
             describe(g.a), describe(g.b));
  WEFT_CHECK(g.k() == n_inner, "{}: {} and {} do not fit together", op, describe(g.a), describe(g.b));
  WEFT_CHECK(g.c.defined() && g.c.rows() == g.m() && g.c.columns() == g.n() &&
                 (g.c.dtype() == g.a.dtype() || g.c.dtype() == accumulator_of(g.a.dtype())),
             "{}: result {} of {} and {}", op, describe(g.c), describe(g.a), describe(g.b));
  WEFT_CHECK(
      !g.bias.defined() || (g.bias.elems() == g.n() && g.bias.contiguous() && g.bias.dtype() == g.a.dtype()),
      "{}: bias {} for result {}", op, describe(g.bias), describe(g.c));
  if (g.m() == 0 || g.n() == 0) return;
  const Tensor scratch = lane.alloc(DType::kU8, {WEFT_OPS_SIZE(lane, gemm_scratch, g)}, "gemm scratch");
  WEFT_OPS_DISPATCH(lane, gemm, g, scratch);
}

Shape with_columns(const Tensor& x, std::int64_t columns) {
  Shape shape = x.shape();
  shape.set(-1, columns);
  return shape;
}

}  // namespace

Tensor gemm_nt(Lane& lane, const Tensor& x, const Tensor& w, const Tensor& bias) {
  WEFT_CHECK(x.rank() >= 1 && w.rank() == 2, "gemm_nt: x {}, w {}", describe(x), describe(w));
  Tensor y = lane.alloc(x.dtype(), with_columns(x, w.dim(0)), "gemm_nt result");
  gemm_nt_into(lane, x, w, bias, y);
  return y;
}

void gemm_nt_into(Lane& lane, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) {
  run(lane, "gemm_nt", {Gemm::Form::kNT, x, w, bias, y, 0});
}

Tensor gemm_nn(Lane& lane, const Tensor& dy, const Tensor& w) {
  WEFT_CHECK(dy.rank() >= 1 && w.rank() == 2, "gemm_nn: dy {}, w {}", describe(dy), describe(w));
  Tensor dx = lane.alloc(dy.dtype(), with_columns(dy, w.dim(1)), "gemm_nn result");
  gemm_nn_into(lane, dy, w, dx);
  return dx;
}

void gemm_nn_into(Lane& lane, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  run(lane, "gemm_nn", {Gemm::Form::kNN, dy, w, {}, dx, 0});
}

void gemm_tn_accumulate(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& dw, float beta) {
  WEFT_CHECK(beta == 0 || beta == 1, "gemm_tn: beta {} is neither 0 nor 1", beta);
  WEFT_CHECK(dw.dtype() == accumulator_of(dy.dtype()), "gemm_tn: dw {} for dy {}", describe(dw),
             describe(dy));
  run(lane, "gemm_tn", {Gemm::Form::kTN, dy, x, {}, dw, beta});
}

void bias_gradient(Lane& lane, const Tensor& dy, const Tensor& db, float beta) {
  WEFT_CHECK(is_floating(dy.dtype()) && db.dtype() == accumulator_of(dy.dtype()) &&
                 db.elems() == dy.columns() && db.contiguous(),
             "bias_gradient: db {} for dy {}", describe(db), describe(dy));
  const Tensor scratch = lane.alloc(
      db.dtype(), {WEFT_OPS_SIZE(lane, bias_gradient_chunks, dy.rows(), dy.columns()), dy.columns()},
      "bias_gradient scratch");
  WEFT_OPS_DISPATCH(lane, bias_gradient, dy, db, beta, scratch);
}

}  // namespace weft::ops
