#include "ops/cuda/grouped_tiles.cuh"

namespace weft::ops::cuda {

void grouped_tiles_tn(Lane& lane, const GroupedGemm& g) {
  constexpr Gemm::Form kForm = Gemm::Form::kTN;
  const bool wide = g.c.dtype() == DType::kF32;
  if (g.a.dtype() == DType::kBF16) {
    wide ? launch_grouped_tiles<kForm, __nv_bfloat16, float>(lane, g)
         : launch_grouped_tiles<kForm, __nv_bfloat16, __nv_bfloat16>(lane, g);
  } else {
    wide ? launch_grouped_tiles<kForm, __half, float>(lane, g)
         : launch_grouped_tiles<kForm, __half, __half>(lane, g);
  }
}

}  // namespace weft::ops::cuda
