#include "ops/dropout.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

void check_site(const Tensor& x, const DropoutSite& site, const char* op) {
  check_floating(x, op, "x");
  WEFT_CHECK(x.rank() == 3, "{}: x is {}, expected [s, b, h]", op, describe(x));
  WEFT_CHECK(site.p >= 0 && site.p < 1, "{}: p = {} is not in [0, 1)", op, site.p);
  if (site.p > 0) {
    check_vector(site.sample_ids, x.dim(1), DType::kI64, op, "sample_ids");
    WEFT_CHECK(site.tokens.first >= 0 && site.tokens.next >= 0 && site.first_channel >= 0,
               "{}: first tokens {} and {}, first channel {}", op, site.tokens.first, site.tokens.next,
               site.first_channel);
  }
}

}  // namespace

Tensor bias_dropout_add(Lane& lane, const Tensor& x, const Tensor& bias, const Tensor& residual,
                        const DropoutSite& site) {
  check_site(x, site, "bias_dropout_add");
  if (bias.defined()) check_vector(bias, x.columns(), x.dtype(), "bias_dropout_add", "bias");
  if (residual.defined()) check_like(residual, x, "bias_dropout_add", "residual");
  Tensor out = lane.alloc(x.dtype(), x.shape(), "bias_dropout_add result");
  WEFT_OPS_DISPATCH(lane, bias_dropout_add, x, bias, residual, site, out);
  return out;
}

Tensor dropout_backward(Lane& lane, const Tensor& dout, const DropoutSite& site) {
  check_site(dout, site, "dropout_backward");
  if (site.p == 0) return dout;
  Tensor dx = lane.alloc(dout.dtype(), dout.shape(), "dropout gradient");
  WEFT_OPS_DISPATCH(lane, dropout_backward, dout, site, dx);
  return dx;
}

}  // namespace weft::ops
