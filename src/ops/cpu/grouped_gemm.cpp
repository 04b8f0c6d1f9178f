// The product of each expert, one after the other, each by all workers.
#include <algorithm>
#include <bit>

#include "ops/cpu/dnnl_gemm.hpp"
#include "ops/cpu/support.hpp"
#include "ops/cpu/tile_product.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

// Rows [first, first + count) with the weight of an expert; beta is that of a gradient.
Gemm product_of(const GroupedGemm& g, Index expert, Index first, Index count, float beta) {
  const Tensor weight = g.weights().slice(expert * g.out(), g.out());
  if (g.form == Gemm::Form::kTN) {
    return {g.form, g.a.slice(first, count), g.b.slice(first, count), {}, weight, beta};
  }
  return {g.form, g.a.slice(first, count), weight, {}, g.c.slice(first, count), 0};
}

// How many of these rows are multiplied at once. The scratch must suffice for any number of rows: our own
// kernels need as much as the most of any whole number of tiles, which is quickly looked up. oneDNN has to be
// asked for each number, so it only gets powers of two.
Index rows_at_once(const GroupedGemm& g, Index rows) {
  if (!dnnl_takes(product_of(g, 0, 0, rows, 0))) return rows;
  return static_cast<Index>(std::bit_floor(static_cast<std::uint64_t>(rows)));
}

void zero_rows(Lane& lane, const Tensor& x, Index first) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    for_rows(lane, x.dim(0) - first, x.dim(1), [&](Index begin, Index end) {
      for (Index r = first + begin; r < first + end; ++r)
        std::fill_n(x.data<T>() + r * x.ld(), x.dim(1), T{});
    });
  });
}

}  // namespace

std::int64_t grouped_gemm_scratch(const Lane& lane, const GroupedGemm& g) {
  const Index rows = g.rows();
  if (rows == 0) return 0;
  const bool gradient = g.form == Gemm::Form::kTN;
  // A gradient may be written and then added to.
  const auto needed = [&](Index count) {
    const Index writes = gemm_scratch(lane, product_of(g, 0, 0, count, 0));
    return gradient ? std::max(writes, gemm_scratch(lane, product_of(g, 0, 0, count, 1))) : writes;
  };
  Index most = 0;
  if (dnnl_takes(product_of(g, 0, 0, rows, 0))) {
    for (Index count = 1; count <= rows; count *= 2) most = std::max(most, needed(count));
  } else if (gradient) {
    most = needed(rows);  // which the depth does not change
  } else {
    for (Index count = Wide::kRows; count < rows + Wide::kRows; count += Wide::kRows) {
      most = std::max(most, needed(std::min(count, rows)));
    }
  }
  return most;
}

void grouped_gemm(Lane& lane, const GroupedGemm& g, const Tensor& scratch) {
  const std::int32_t* offsets = g.offsets.data<std::int32_t>();
  const bool gradient = g.form == Gemm::Form::kTN;
  for (Index e = 0; e < g.experts(); ++e) {
    WEFT_CHECK(offsets[e] >= 0 && offsets[e] <= offsets[e + 1] && offsets[e + 1] <= g.rows(),
               "expert {} has rows {} to {} of {}", e, offsets[e], offsets[e + 1], g.rows());
    float beta = g.beta;
    if (gradient && beta == 0 && offsets[e] == offsets[e + 1]) {
      zero_rows(lane, g.c.slice(e * g.out(), g.out()), 0);
    }
    for (Index r = offsets[e]; r < offsets[e + 1];) {
      const Index count = rows_at_once(g, offsets[e + 1] - r);
      gemm(lane, product_of(g, e, r, count, beta), scratch);
      r += count;
      beta = 1;
    }
  }
  if (!gradient) zero_rows(lane, g.c, offsets[g.experts()]);
}

}  // namespace weft::ops::cpu
