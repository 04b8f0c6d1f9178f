// Stands in for dnnl_gemm.cpp in builds without oneDNN: our own kernels take every product.
#include "ops/cpu/dnnl_gemm.hpp"

namespace weft::ops::cpu {

bool dnnl_takes(const Gemm&) {
  return false;
}

std::int64_t dnnl_gemm_scratch(const Lane&, const Gemm&) {
  return 0;
}

void dnnl_gemm(Lane&, const Gemm&, const Tensor&) {
  WEFT_CHECK(false, "a product for oneDNN in a build without it");
}

}  // namespace weft::ops::cpu
