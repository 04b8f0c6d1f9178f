// Packed matrix product: each piece is a tile of c and packs its own panels of a and b (converted to the
// accumulator type on the way, so 16-bit operands cost no extra pass). The split of k is fixed and each
// element of c is summed in order of k, so the result does not depend on the tiles, on the number of workers
// or on the other rows.
#include <algorithm>

#include "ops/cpu/dnnl_gemm.hpp"
#include "ops/cpu/support.hpp"
#include "ops/cpu/tile_product.hpp"
#include "ops/cpu/transpose.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

constexpr Index kDepth = 256;     // of k at a time: a panel of b (16 columns) stays in L1
constexpr Index kBlockRows = 96;  // rows of packed a at a time: they stay in L2

constexpr Index kSlack = 16;

struct Tiling {
  Index rows, columns;   // of a tile of c
  Index across, pieces;  // tiles in a row of tiles; all tiles
  int slots;
};

// Large tiles pack less; there should be a few for each worker. Borders are multiples of every kernel's tile.
Tiling choose_tiling(const Lane& lane, Index m, Index n) {
  constexpr Index kRows = Wide::kRows, kColumns = kPaddedColumns<float>;
  const int threads = lane.workers.threads();
  Index rows = std::min<Index>(round_up(m, kRows), 384),
        columns = std::min<Index>(round_up(n, kColumns), 512);
  while (ceil_div(m, rows) * ceil_div(n, columns) < 3 * threads && std::max(rows, columns) > 48) {
    if (rows >= columns) {
      rows = round_up(ceil_div(rows, 2), kRows);
    } else {
      columns = round_up(ceil_div(columns, 2), kColumns);
    }
  }
  // Even tiles: no thin last row or column of tiles.
  rows = round_up(ceil_div(m, ceil_div(m, rows)), kRows);
  columns = round_up(ceil_div(n, ceil_div(n, columns)), kColumns);
  Tiling t{rows, columns, ceil_div(n, columns), 0, 0};
  t.pieces = ceil_div(m, rows) * t.across;
  t.slots = static_cast<int>(std::min<Index>(threads, t.pieces));
  return t;
}

// Elements of one slot: packed a, packed b (each with room for one vector more), and the tile of c where it
// is not summed in place.
template <class A>
Index slot_elements(const Tiling& t, bool own_c) {
  return kDepth * (t.rows + t.columns) + 2 * kSlack + (own_c ? t.rows * t.columns : 0);
}

// Panels of Width "lines" (rows of a, columns of b): out[panel][p][line]. `line_stride` and `depth_stride`
// say where element (line, p) lies; one of them is 1. Lines past `lines` become zeros. Up to a vector past
// the end is written.
template <int Width, class T, class A>
void pack(const T* in, Index line_stride, Index depth_stride, Index lines, Index depth, A* out) {
  constexpr Index kLanes = Vector<A>::kLanes;
  if (line_stride == 1) {
    // A row of `in` at a time, spread over the panels: memory is read in long runs.
    for (Index p = 0; p < depth; ++p) {
      const T* __restrict from = in + p * depth_stride;
      A* __restrict to = out + p * Width;
      Index first = 0;
      for (; first + Width <= lines; first += Width) {
        for (Index i = 0; i < Width; ++i) to[first * depth + i] = to_acc(from[first + i]);
      }
      if (first == lines) continue;
      for (Index i = 0; i < Width; ++i)
        to[first * depth + i] = first + i < lines ? to_acc(from[first + i]) : A{0};
    }
    return;
  }
  for (Index first = 0; first < lines; first += Width, out += depth * Width) {
    // The last vector of a row reaches into the next one, so it is written before what is there.
    for (Index part = (Width - 1) / kLanes * kLanes; part >= 0; part -= kLanes) {
      const Index count = std::clamp<Index>(std::min<Index>(Width, lines - first) - part, 0, kLanes);
      transpose_lines<A>(in + (first + part) * line_stride, line_stride, count, depth, out + part, Width);
    }
  }
}

template <class Isa, class A>
[[gnu::always_inline]] inline void multiply_panels(Index m, Index n, Index depth, const A* a, const A* b,
                                                   A* c, Index ldc, bool accumulate) {
  constexpr Index kColumns = kTileColumns<Isa, A>;
  for (Index block = 0; block < m; block += kBlockRows) {
    const Index block_end = std::min(m, block + kBlockRows);
    for (Index j = 0; j < n; j += kColumns) {
      const A* panel = b + j * depth;
      for (Index i = block; i < block_end; i += Isa::kRows) {
        const Index rows = std::min<Index>(Isa::kRows, m - i);
        A* out = c + i * ldc + j;
        if (n - j >= kColumns) {
          register_rows<Isa>(rows, depth, a + i * depth, 1, Isa::kRows, panel, kColumns, out, ldc,
                             accumulate);
          continue;
        }
        A edge[Isa::kRows * kColumns];
        register_rows<Isa>(rows, depth, a + i * depth, 1, Isa::kRows, panel, kColumns, edge, kColumns, false);
        for (Index r = 0; r < rows; ++r) {
          for (Index s = 0; s < n - j; ++s) {
            const A sum = edge[r * kColumns + s];
            out[r * ldc + s] = accumulate ? out[r * ldc + s] + sum : sum;
          }
        }
      }
    }
  }
}

template <class A>
WEFT_WIDE_TARGET void multiply_wide(Index m, Index n, Index depth, const A* a, const A* b, A* c, Index ldc,
                                    bool accumulate) {
  multiply_panels<Wide>(m, n, depth, a, b, c, ldc, accumulate);
}

template <class Isa, class A>
void multiply(Index m, Index n, Index depth, const A* a, const A* b, A* c, Index ldc, bool accumulate) {
  if constexpr (std::same_as<Isa, Wide>) {
    multiply_wide(m, n, depth, a, b, c, ldc, accumulate);
  } else {
    multiply_panels<Isa>(m, n, depth, a, b, c, ldc, accumulate);
  }
}

// T: a and b; O: c.
template <class Isa, class T, class O>
void run(Lane& lane, const Gemm& g, const Tensor& scratch) {
  using A = accumulator_t<T>;
  constexpr Index kColumns = kTileColumns<Isa, A>;
  constexpr bool kInPlace = std::same_as<O, A>;
  const Index m = g.m(), n = g.n(), k = g.k();
  const Tiling t = choose_tiling(lane, m, n);
  const T* a = g.a.data<T>();
  const T* b = g.b.data<T>();
  const T* bias = g.bias.defined() ? g.bias.data<T>() : nullptr;
  O* c = g.c.data<O>();
  const bool a_transposed = g.form == Gemm::Form::kTN;
  const Index a_line = a_transposed ? 1 : g.a.ld(), a_depth = a_transposed ? g.a.ld() : 1;
  const bool b_transposed = g.form == Gemm::Form::kNT;
  const Index b_line = b_transposed ? g.b.ld() : 1, b_depth = b_transposed ? 1 : g.b.ld();
  const Index slot_size = slot_elements<A>(t, !kInPlace);
  A* const memory = reinterpret_cast<A*>(scratch.raw());
  Slots slots(t.slots);

  lane.workers.parallel_for(t.pieces, 1, [&](Index piece, Index) {
    const Slots::Lease slot(slots);
    A* packed_a = memory + slot.index() * slot_size;
    A* packed_b = packed_a + kDepth * t.rows + kSlack;
    const Index i0 = piece / t.across * t.rows, j0 = piece % t.across * t.columns;
    const Index rows = std::min(t.rows, m - i0), columns = std::min(t.columns, n - j0);
    A* sums;
    Index lds;
    if constexpr (kInPlace) {
      sums = c + i0 * g.c.ld() + j0;
      lds = g.c.ld();
    } else {
      sums = packed_b + kDepth * t.columns + kSlack;
      lds = t.columns;
    }
    bool accumulate = kInPlace && g.beta != 0;
    for (Index p = 0; p < k || p == 0; p += kDepth) {
      const Index depth = std::min(kDepth, k - p);
      pack<Isa::kRows>(a + i0 * a_line + p * a_depth, a_line, a_depth, rows, depth, packed_a);
      pack<kColumns>(b + j0 * b_line + p * b_depth, b_line, b_depth, columns, depth, packed_b);
      multiply<Isa>(rows, columns, depth, packed_a, packed_b, sums, lds, accumulate);
      accumulate = true;
    }
    if (kInPlace && bias == nullptr) return;
    for (Index i = 0; i < rows; ++i) {
      A* __restrict from = sums + i * lds;
      if (bias != nullptr) {
        for (Index j = 0; j < columns; ++j) from[j] += to_acc(bias[j0 + j]);
      }
      if constexpr (!kInPlace) convert(from, c + (i0 + i) * g.c.ld() + j0, columns);
    }
  });
}

}  // namespace

std::int64_t gemm_scratch(const Lane& lane, const Gemm& g) {
  if (dnnl_takes(g)) return dnnl_gemm_scratch(lane, g);
  const bool wide = g.a.dtype() == DType::kF64;
  const Tiling t = choose_tiling(lane, g.m(), g.n());
  const bool own_c = g.c.dtype() != accumulator_of(g.a.dtype());
  return t.slots * slot_elements<float>(t, own_c) * (wide ? 8 : 4);
}

void gemm(Lane& lane, const Gemm& g, const Tensor& scratch) {
  if (dnnl_takes(g)) {
    dnnl_gemm(lane, g, scratch);
    return;
  }
  const bool own_c = g.c.dtype() != accumulator_of(g.a.dtype());
  visit_floating(g.a.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    if (has_wide_vectors()) {
      own_c ? run<Wide, T, T>(lane, g, scratch) : run<Wide, T, A>(lane, g, scratch);
    } else {
      own_c ? run<Narrow, T, T>(lane, g, scratch) : run<Narrow, T, A>(lane, g, scratch);
    }
  });
}

std::int64_t bias_gradient_chunks(const Lane&, std::int64_t rows, std::int64_t) {
  return RowRanges(rows).count;
}

void bias_gradient(Lane& lane, const Tensor& dy, const Tensor& db, float beta, const Tensor& scratch) {
  visit_floating(dy.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index n = dy.columns();
    const T* in = dy.data<T>();
    A* partial = scratch.data<A>();
    const RowRanges ranges(dy.rows());
    lane.workers.parallel_for(ranges.count, 1, [&](Index range, Index) {
      A* __restrict sums = partial + range * n;
      std::fill(sums, sums + n, A{0});
      for (Index r = ranges.begin(range); r < ranges.end(range); ++r) {
        const T* __restrict row = in + r * dy.ld();
        for (Index j = 0; j < n; ++j) sums[j] += to_acc(row[j]);
      }
    });
    reduce_rows(lane, partial, ranges.count, n, beta, db.data<A>());
  });
}

}  // namespace weft::ops::cpu
