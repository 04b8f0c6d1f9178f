// The product of each expert, one after the other, each by all workers.
//
// The scratch must suffice for any offsets. Our own kernels need as much as the most of any whole number of
// tiles, which is quickly looked up. oneDNN has to be asked for each number of rows, so it only gets powers
// of two: rows that are left below kWhole are copied, with zeros after them, and multiplied there.
#include <algorithm>
#include <bit>

#include "ops/cpu/dnnl_gemm.hpp"
#include "ops/cpu/support.hpp"
#include "ops/cpu/tile_product.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

constexpr Index kFewest = 16, kWhole = 128;

Index bit_floor(Index n) {
  return static_cast<Index>(std::bit_floor(static_cast<std::uint64_t>(n)));
}
Index bit_ceil(Index n) {
  return static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

bool is_gradient(const GroupedGemm& g) {
  return g.form == Gemm::Form::kTN;
}

// Rows [first, first + count) with the weight of an expert; beta is that of a gradient.
Gemm product_of(const GroupedGemm& g, Index expert, Index first, Index count, float beta) {
  const Tensor weight = g.weights().slice(expert * g.out(), g.out());
  const Tensor a = g.a.slice(first, count);
  if (is_gradient(g)) return {g.form, a, g.b.slice(first, count), {}, weight, beta};
  return {g.form, a, weight, {}, g.c.slice(first, count), 0};
}

bool is_for_dnnl(const GroupedGemm& g) {
  return g.rows() > 0 && dnnl_takes(product_of(g, 0, 0, 1, 0));
}

// What has rows beside a: of a gradient b, else c.
const Tensor& other_rows(const GroupedGemm& g) {
  return is_gradient(g) ? g.b : g.c;
}

Index copies_bytes(const GroupedGemm& g) {
  return kWhole * (g.a.columns() + other_rows(g).columns()) * static_cast<Index>(bytes_of(g.a.dtype()));
}

// The product of `count` rows that lie in `memory` (of copies_bytes; null where only sizes count).
Gemm product_of_copies(const GroupedGemm& g, Index expert, Index count, float beta, std::byte* memory) {
  const Tensor weight = g.weights().slice(expert * g.out(), g.out());
  const Tensor a = Tensor::borrow(memory, g.a.dtype(), {count, g.a.columns()});
  std::byte* const after = memory == nullptr ? nullptr : memory + a.bytes();
  const Tensor other = Tensor::borrow(after, g.a.dtype(), {count, other_rows(g).columns()});
  if (is_gradient(g)) return {g.form, a, other, {}, weight, beta};
  return {g.form, a, weight, {}, other, 0};
}

void zero_rows(Lane& lane, const Tensor& x, Index first) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    for_rows(lane, x.dim(0) - first, x.dim(1), [&](Index begin, Index end) {
      for (Index r = first + begin; r < first + end; ++r) {
        std::fill_n(x.data<T>() + r * x.ld(), x.dim(1), T{});
      }
    });
  });
}

void multiply_copies(Lane& lane, const GroupedGemm& g, Index expert, Index first, Index rows, float beta,
                     const Tensor& scratch) {
  const Index count = std::max(kFewest, bit_ceil(rows));
  const Gemm product = product_of_copies(g, expert, count, beta, scratch.raw());
  const auto bring = [&](const Tensor& from, const Tensor& to) {
    copy(lane, from.slice(first, rows), to.slice(0, rows));
    zero_rows(lane, to, rows);
  };
  bring(g.a, product.a);
  if (is_gradient(g)) bring(g.b, product.b);
  const Index copies = copies_bytes(g);
  gemm(lane, product, scratch.slice(copies, scratch.elems() - copies));
  if (!is_gradient(g)) copy(lane, product.c.slice(0, rows), g.c.slice(first, rows));
}

void multiply_expert(Lane& lane, const GroupedGemm& g, Index expert, Index begin, Index end,
                     const Tensor& scratch) {
  if (!is_for_dnnl(g)) return gemm(lane, product_of(g, expert, begin, end - begin, g.beta), scratch);
  const Index copies = copies_bytes(g);
  const Tensor rest = scratch.slice(copies, scratch.elems() - copies);
  float beta = g.beta;
  for (; end - begin >= kWhole; beta = 1) {
    const Index count = bit_floor(end - begin);
    gemm(lane, product_of(g, expert, begin, count, beta), rest);
    begin += count;
  }
  if (begin < end) multiply_copies(lane, g, expert, begin, end - begin, beta, scratch);
}

}  // namespace

std::int64_t grouped_gemm_scratch(const Lane& lane, const GroupedGemm& g) {
  const Index rows = g.rows();
  if (rows == 0) return 0;
  Index most = 0;
  const auto ask = [&](const Gemm& product) { most = std::max(most, gemm_scratch(lane, product)); };
  if (is_for_dnnl(g)) {
    for (const float beta : {0.0f, 1.0f}) {  // a gradient is written, and then added to
      if (beta != 0 && !is_gradient(g)) break;
      for (Index count = kFewest; count <= kWhole; count *= 2) {
        ask(product_of_copies(g, 0, count, beta, nullptr));
      }
      for (Index count = kWhole; count <= rows; count *= 2) ask(product_of(g, 0, 0, count, beta));
    }
    return copies_bytes(g) + most;
  }
  if (is_gradient(g)) return gemm_scratch(lane, product_of(g, 0, 0, rows, 0));  // the same for any depth
  for (Index count = Wide::kRows; count < rows + Wide::kRows; count += Wide::kRows) {
    ask(product_of(g, 0, 0, std::min(count, rows), 0));
  }
  return most;
}

void grouped_gemm(Lane& lane, const GroupedGemm& g, const Tensor& scratch) {
  const std::int32_t* offsets = g.offsets.data<std::int32_t>();
  for (Index e = 0; e < g.experts(); ++e) {
    WEFT_CHECK(offsets[e] >= 0 && offsets[e] <= offsets[e + 1] && offsets[e + 1] <= g.rows(),
               "expert {} has rows {} to {} of {}", e, offsets[e], offsets[e + 1], g.rows());
    if (offsets[e] < offsets[e + 1]) {
      multiply_expert(lane, g, e, offsets[e], offsets[e + 1], scratch);
    } else if (is_gradient(g) && g.beta == 0) {
      zero_rows(lane, g.c.slice(e * g.out(), g.out()), 0);
    }
  }
  if (!is_gradient(g)) zero_rows(lane, g.c, offsets[g.experts()]);
}

}  // namespace weft::ops::cpu
