// One kernel for everything that visits a matrix element by element: cuts it into vectors, gives each thread
// several of them, and loads all of a thread's vectors before it stores the first, so that several loads are
// in flight. An operation is a struct
//   static constexpr int kUnroll;            vectors of a thread
//   template <int N> auto load(t, b, j);     what it reads for elements [j, j + N) of row t · batch + b
//   template <int N> void run(t, b, j, in);  the rest
// of pointers and strides, passed by value. Where there is no batch, b is 0 and t is the row.
#pragma once

#include <algorithm>

#include "ops/cuda/kernel.cuh"

namespace weft::ops::cuda {

// What an operation that keeps nothing between load and run loads.
struct Nothing {};

struct Span {
  Index rows = 0, batch = 1;     // t in [0, rows), b in [0, batch)
  Index first = 0, vectors = 0;  // j = first + N c, c in [0, vectors)
  // A thread's first vector is at row (x · rows_x + its y), column (x · columns_x + y · columns_y + its x)
  // for block (x, y); the next ones `row_step` and `column_step` further.
  Index rows_x = 0, columns_x = 0, columns_y = 0, row_step = 0, column_step = 0;
  Index columns_all = 0;  // columns that the whole grid covers at once
};

template <int N, class Op>
__global__ void __launch_bounds__(256) span_kernel(const Op op, const Span s) {
  constexpr int kUnroll = Op::kUnroll;
  const Index row = blockIdx.x * s.rows_x + threadIdx.y;
  for (Index b = blockIdx.z; b < s.batch; b += gridDim.z) {
    for (Index column = blockIdx.x * s.columns_x + blockIdx.y * s.columns_y + threadIdx.x; column < s.vectors;
         column += s.columns_all) {
      decltype(op.template load<N>(row, b, column)) in[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Index t = row + u * s.row_step, c = column + u * s.column_step;
        if (t < s.rows && c < s.vectors) in[u] = op.template load<N>(t, b, s.first + c * N);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Index t = row + u * s.row_step, c = column + u * s.column_step;
        if (t < s.rows && c < s.vectors) op.template run<N>(t, b, s.first + c * N, in[u]);
      }
    }
  }
}

template <int N, class Op>
void launch_span(cudaStream_t stream, const Op& op, Span s, const char* what) {
  constexpr Index kThreads = 256, kMostBlocks = 65535;  // of y and of z; x may have 2³¹ − 1
  if (s.rows == 0 || s.batch == 0 || s.vectors == 0) return;
  dim3 grid, block;
  if (s.rows == 1 && s.batch == 1) {
    s.columns_x = kThreads * Op::kUnroll;
    s.column_step = kThreads;
    block = dim3(kThreads);
    grid = dim3(blocks_for(s.vectors, s.columns_x));
    s.columns_all = s.columns_x * grid.x;
  } else {
    // As few columns of threads without work as can be.
    const Index tiles = (s.vectors + kThreads - 1) / kThreads;
    Index width = 1;
    if (s.vectors > 16) {
      width = ((s.vectors + tiles - 1) / tiles + 31) / 32 * 32;
    } else {
      while (width < s.vectors) width *= 2;
    }
    const Index height = std::max<Index>(1, kThreads / width);
    s.rows_x = height * Op::kUnroll;
    s.row_step = height;
    s.columns_y = width;
    block = dim3(static_cast<unsigned>(width), static_cast<unsigned>(height));
    grid = dim3(blocks_for(s.rows, s.rows_x), static_cast<unsigned>(std::min(tiles, kMostBlocks)),
                static_cast<unsigned>(std::min(s.batch, kMostBlocks)));
    s.columns_all = width * grid.y;
  }
  span_kernel<N><<<grid, block, 0, stream>>>(op, s);
  launched(what);
}

// Whether vectors of n elements may start at x's first element.
inline bool aligned(const Tensor& x, int n) {
  return !x.defined() || reinterpret_cast<std::uintptr_t>(x.raw()) % (n * bytes_of(x.dtype())) == 0;
}

// Every element of operands of one shape (rows × columns); those that are not defined do not count. N: the
// elements of a vector where all of them allow vectors.
template <int N, class Op, class... Tensors>
void for_elements(cudaStream_t stream, const char* what, const Op& op, const Tensor& x,
                  const Tensors&... more) {
  Span s{.rows = x.rows()};
  const bool flat = x.contiguous() && (... && (!more.defined() || more.contiguous()));
  const Index columns = flat ? x.elems() : x.columns();
  if (flat) s.rows = columns > 0 ? 1 : 0;
  if (flat && aligned(x, N) && (... && aligned(more, N))) {
    s.vectors = columns / N;
    launch_span<N>(stream, op, s, what);
    s.first = s.vectors * N;
  } else if (!flat && vectorizable(x, N) && (... && vectorizable(more, N))) {
    s.vectors = columns / N;
    launch_span<N>(stream, op, s, what);
    return;
  }
  s.vectors = columns - s.first;
  launch_span<1>(stream, op, s, what);
}

// Tokens [s, b]: elements by (t, b, j). `allowed` says whether the rows of all operands allow vectors of N.
template <int N, class Op>
void for_tokens(cudaStream_t stream, const char* what, const Op& op, Index s, Index b, Index columns,
                bool allowed) {
  Span span{.rows = s, .batch = b};
  span.vectors = allowed ? columns / N : columns;
  allowed ? launch_span<N>(stream, op, span, what) : launch_span<1>(stream, op, span, what);
}

}  // namespace weft::ops::cuda
