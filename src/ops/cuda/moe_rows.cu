// Rows of tokens to their experts and back.
#include "ops/cuda/spans.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <class Body>
__global__ void __launch_bounds__(kThreads) for_each(Index n, const Body body) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) body(i);
}
template <class Body>
void run(cudaStream_t stream, Index n, const char* what, const Body& body) {
  if (n == 0) return;
  for_each<<<blocks_for(n, kThreads), kThreads, 0, stream>>>(n, body);
  launched(what);
}

template <class T>
struct ToRows {
  const T* in;
  const std::int32_t* rows;
  T* out;
  __device__ void operator()(Index i) const {
    if (rows[i] >= 0) out[rows[i]] = in[i];
  }
};
template <class T>
struct FromRows {
  const T* in;
  const std::int32_t* rows;
  T* out;
  __device__ void operator()(Index i) const { out[i] = rows[i] >= 0 ? in[rows[i]] : T(0.0f); }
};

// A row of the result is the row of its pair's token, or 0.
template <class T>
struct Spread {
  static constexpr int kUnroll = 4;
  const T* x;
  Index x_ld;
  int k;
  const std::int32_t* pairs;  // of each row, −1: none
  T* out;
  Index out_ld;
  template <int N>
  __device__ Vec<T, N> load(Index row, Index, Index j) const {
    const std::int32_t pair = pairs[row];
    if (pair >= 0) return cuda::load<N>(x + pair / k * x_ld + j);
    Vec<T, N> none;
#pragma unroll
    for (int i = 0; i < N; ++i) none.v[i] = T(0.0f);
    return none;
  }
  template <int N>
  __device__ void run(Index row, Index, Index j, const Vec<T, N>& in) const {
    store(out + row * out_ld + j, in);
  }
};

// A token's sum over its pairs, in their order; as many rows under way as fit.
template <class T>
struct Collect {
  static constexpr int kUnroll = 1, kAtOnce = 8;
  const T* y;
  Index y_ld;
  int k;
  const std::int32_t* rows;
  T* x;
  Index x_ld;
  template <int N>
  __device__ Nothing load(Index, Index, Index) const {
    return {};
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, Nothing) const {
    Acc<T> sums[N] = {};
    for (int first = 0; first < k; first += kAtOnce) {
      Vec<T, N> in[kAtOnce];
      bool has[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const std::int32_t row = first + u < k ? rows[t * k + first + u] : -1;
        has[u] = row >= 0;
        if (has[u]) in[u] = cuda::load<N>(y + row * y_ld + j);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (!has[u]) continue;
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] += to_acc(in[u].v[i]);
      }
    }
    store(x + t * x_ld + j, rounded<T>(sums));
  }
};

}  // namespace

void own_experts(Lane& lane, const Tensor& experts, std::int64_t first, std::int64_t count,
                 const Tensor& own) {
  run(stream(lane), experts.elems(), "run own_experts",
      [in = data<std::int32_t>(experts), out = data<std::int32_t>(own), first, count] __device__(Index i) {
        const Index e = in[i] - first;
        out[i] = e >= 0 && e < count ? static_cast<std::int32_t>(e) : -1;
      });
}

// The pair of each row.
std::int64_t spread_rows_scratch(const Lane&, const Tensor& out) {
  return out.dim(0) * static_cast<Index>(sizeof(std::int32_t));
}

void spread_rows(Lane& lane, const Tensor& x, const Tensor& rows, const Tensor& out, const Tensor& scratch) {
  if (out.elems() == 0) return;
  auto* pairs = reinterpret_cast<std::int32_t*>(scratch.raw());
  check(
      cudaMemsetAsync(pairs, 0xff, static_cast<std::size_t>(out.dim(0)) * sizeof(std::int32_t), stream(lane)),
      "clear pairs of rows");
  run(stream(lane), rows.elems(), "run spread_rows",
      [row = data<std::int32_t>(rows), pairs, count = out.dim(0)] __device__(Index i) {
        if (row[i] >= 0 && row[i] < count) pairs[row[i]] = static_cast<std::int32_t>(i);
      });
  visit_floating(x.dtype(), [&]<class T>(T) {
    constexpr int N = kPerVector<T>;
    for_tokens<N>(stream(lane), "run spread_rows",
                  Spread<T>{data<T>(x), x.ld(), static_cast<int>(rows.dim(1)), pairs, data<T>(out), out.ld()},
                  out.dim(0), 1, out.dim(1), vectorizable(x, N) && vectorizable(out, N));
  });
}

void collect_rows(Lane& lane, const Tensor& y, const Tensor& rows, const Tensor& x) {
  visit_floating(y.dtype(), [&]<class T>(T) {
    constexpr int N = kPerVector<T>;
    for_tokens<N>(stream(lane), "run collect_rows",
                  Collect<T>{data<T>(y), y.ld(), static_cast<int>(rows.dim(1)), data<std::int32_t>(rows),
                             data<T>(x), x.ld()},
                  x.dim(0), 1, x.dim(1), vectorizable(y, N) && vectorizable(x, N));
  });
}

void spread_values(Lane& lane, const Tensor& values, const Tensor& rows, const Tensor& out) {
  if (out.elems() == 0) return;
  visit_floating(values.dtype(), [&]<class T>(T) {
    check(cudaMemsetAsync(out.raw(), 0, out.bytes(), stream(lane)), "clear values of rows");
    run(stream(lane), rows.elems(), "run spread_values",
        ToRows<T>{data<T>(values), data<std::int32_t>(rows), data<T>(out)});
  });
}

void collect_values(Lane& lane, const Tensor& y, const Tensor& rows, const Tensor& values) {
  visit_floating(y.dtype(), [&]<class T>(T) {
    run(stream(lane), rows.elems(), "run collect_values",
        FromRows<T>{data<T>(y), data<std::int32_t>(rows), data<T>(values)});
  });
}

}  // namespace weft::ops::cuda
