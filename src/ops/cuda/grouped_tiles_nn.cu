#include "ops/cuda/grouped_tiles.cuh"

namespace weft::ops::cuda {

void grouped_tiles_nn(Lane& lane, const GroupedGemm& g) {
  constexpr Gemm::Form kForm = Gemm::Form::kNN;
  g.a.dtype() == DType::kBF16 ? launch_grouped_tiles<kForm, __nv_bfloat16, __nv_bfloat16>(lane, g)
                              : launch_grouped_tiles<kForm, __half, __half>(lane, g);
}

}  // namespace weft::ops::cuda
