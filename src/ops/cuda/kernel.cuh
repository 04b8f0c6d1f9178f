// What the CUDA kernels share: element types, 16-byte vectors, sums over warps and blocks, launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/cuda/check.hpp"
#include "core/tensor.hpp"

namespace weft::ops::cuda {

using Index = std::int64_t;
using weft::cuda::check;

// --- element types: bf16 and f16 as CUDA knows them; the same bits as core/dtype.hpp's
template <class T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};
template <class T>
using Acc = typename Accumulator<T>::type;

__device__ inline float to_acc(float x) {
  return x;
}
__device__ inline double to_acc(double x) {
  return x;
}
__device__ inline float to_acc(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline float to_acc(__half x) {
  return __half2float(x);
}
template <class T>
__device__ inline T from_acc(Acc<T> x) {
  if constexpr (sizeof(T) >= 4) {
    return x;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return __float2half_rn(x);
  }
}

template <class T>
T* data(const Tensor& x) {
  return reinterpret_cast<T*>(x.raw());
}

// Calls body(T{}) with the type of a floating dtype.
template <class Body>
void visit_floating(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF64:
      return body(double{});
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(__nv_bfloat16{});
    case DType::kF16:
      return body(__half{});
    default:
      fail("a CUDA kernel got a tensor of {}", name_of(dtype));
  }
}

// --- vectors of N elements, read and written in one access of up to 16 bytes
template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T v[N];
};
template <class T>
constexpr int kPerVector = 16 / sizeof(T);
template <int N, class T>
__device__ inline Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
// In words of 16 bytes where there are as many: left to itself the compiler stores 16-bit elements one by
// one.
template <int N, class T>
__device__ inline void store(T* p, const Vec<T, N>& v) {
  if constexpr (sizeof(v) % 16 == 0) {
    uint4 words[sizeof(v) / 16];
    memcpy(words, &v, sizeof(v));
#pragma unroll
    for (unsigned i = 0; i < sizeof(v) / 16; ++i) {
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<uint4*>(p) + i),
                   "r"(words[i].x), "r"(words[i].y), "r"(words[i].z), "r"(words[i].w)
                   : "memory");
    }
  } else {
    *reinterpret_cast<Vec<T, N>*>(p) = v;
  }
}
// Makes the compiler convert 16-bit elements anew where they are used next, instead of keeping what it has
// converted before in twice the registers.
template <class T, int N>
__device__ inline void hold_packed(Vec<T, N>& v) {
  if constexpr (sizeof(T) == 2 && N == 8) {
    uint4 words;
    memcpy(&words, &v, sizeof(words));
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
    memcpy(&v, &words, sizeof(words));
  }
}
// Each element rounded once; pairs of 16-bit elements in one instruction.
template <class T, int N>
__device__ inline Vec<T, N> rounded(const Acc<T> (&x)[N]) {
  Vec<T, N> v;
  if constexpr (std::is_same_v<T, __nv_bfloat16> && N % 2 == 0) {
#pragma unroll
    for (int e = 0; e < N; e += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[e], x[e + 1]);
      v.v[e] = pair.x;
      v.v[e + 1] = pair.y;
    }
  } else if constexpr (std::is_same_v<T, __half> && N % 2 == 0) {
#pragma unroll
    for (int e = 0; e < N; e += 2) {
      const __half2 pair = __floats2half2_rn(x[e], x[e + 1]);
      v.v[e] = pair.x;
      v.v[e + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) v.v[e] = from_acc<T>(x[e]);
  }
  return v;
}
// Whether rows of this tensor can be read by vectors of n elements.
inline bool vectorizable(const Tensor& x, int n) {
  const auto bytes = static_cast<std::uintptr_t>(n) * bytes_of(x.dtype());
  return !x.defined() ||
         (reinterpret_cast<std::uintptr_t>(x.raw()) % bytes == 0 && x.columns() % n == 0 && x.ld() % n == 0);
}

// --- sums; every thread of the warp (block) gets the result. The order is fixed.
template <class A>
__device__ inline A warp_sum(A x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
template <class A>
__device__ inline A warp_max(A x) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(0xffffffffu, x, offset);
    x = x > other || x != x ? x : other;  // keeps a NaN
  }
  return x;
}
// `shared`: 32 numbers of the block's, free to use; blockDim.x is a multiple of 32.
template <class A>
__device__ inline A block_sum(A x, A* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x = warp_sum(x);
  __syncthreads();
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? shared[lane] : A{0});
}

// --- launches
inline unsigned blocks_for(Index n, Index per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}
// After a launch; `what` names the kernel.
inline void launched(const char* what) {
  check(cudaGetLastError(), what);
}

}  // namespace weft::ops::cuda
