#include <vector>

#include "ops/cuda/spans.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

// --- copies and conversions
// Elements of one type, moved as integers of its size.
template <class T>
struct Move {
  static constexpr int kUnroll = 4;
  const T* from;
  Index from_ld;
  T* to;
  Index to_ld;
  template <int N>
  __device__ Vec<T, N> load(Index t, Index, Index j) const {
    return cuda::load<N>(from + t * from_ld + j);
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const Vec<T, N>& in) const {
    store(to + t * to_ld + j, in);
  }
};

template <class T>
struct Fill {
  static constexpr int kUnroll = 4;
  T* x;
  Index ld;
  T value;
  template <int N>
  __device__ Nothing load(Index, Index, Index) const {
    return {};
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, Nothing) const {
    Vec<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = value;
    store(x + t * ld + j, out);
  }
};

template <class From, class To>
struct Convert {
  static constexpr int kUnroll = 4;
  const From* from;
  Index from_ld;
  To* to;
  Index to_ld;
  template <int N>
  __device__ Vec<From, N> load(Index t, Index, Index j) const {
    return cuda::load<N>(from + t * from_ld + j);
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const Vec<From, N>& in) const {
    Vec<To, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = from_acc<To>(static_cast<Acc<To>>(to_acc(in.v[i])));
    store(to + t * to_ld + j, out);
  }
};

// Where either side is an integer: one kernel for all pairs, which asks for the types at every element. Such
// copies are rare and small.
struct Number {
  bool whole;
  std::int64_t integer;
  double real;
};
struct ConvertAny {
  static constexpr int kUnroll = 1;
  const std::byte* from;
  Index from_ld;
  DType from_type;
  std::byte* to;
  Index to_ld;
  DType to_type;

  template <class T>
  static __device__ Number integer(const std::byte* p, Index at) {
    return {true, static_cast<std::int64_t>(reinterpret_cast<const T*>(p)[at]), 0};
  }
  template <class T>
  static __device__ Number real(const std::byte* p, Index at) {
    return {false, 0, static_cast<double>(to_acc(reinterpret_cast<const T*>(p)[at]))};
  }
  template <class T>
  static __device__ void put_integer(std::byte* p, Index at, const Number& x) {
    reinterpret_cast<T*>(p)[at] = static_cast<T>(x.whole ? x.integer : static_cast<std::int64_t>(x.real));
  }
  template <class T>
  static __device__ void put_real(std::byte* p, Index at, const Number& x) {
    reinterpret_cast<T*>(p)[at] =
        from_acc<T>(x.whole ? static_cast<Acc<T>>(x.integer) : static_cast<Acc<T>>(x.real));
  }

  template <int N>
  __device__ Number load(Index t, Index, Index j) const {
    const Index at = t * from_ld + j;
    switch (from_type) {
      case DType::kF64:
        return real<double>(from, at);
      case DType::kF32:
        return real<float>(from, at);
      case DType::kBF16:
        return real<__nv_bfloat16>(from, at);
      case DType::kF16:
        return real<__half>(from, at);
      case DType::kI64:
        return integer<std::int64_t>(from, at);
      case DType::kI32:
        return integer<std::int32_t>(from, at);
      case DType::kI16:
        return integer<std::int16_t>(from, at);
      case DType::kU16:
        return integer<std::uint16_t>(from, at);
      case DType::kI8:
        return integer<std::int8_t>(from, at);
      default:
        return integer<std::uint8_t>(from, at);
    }
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const Number& x) const {
    const Index at = t * to_ld + j;
    switch (to_type) {
      case DType::kF64:
        return put_real<double>(to, at, x);
      case DType::kF32:
        return put_real<float>(to, at, x);
      case DType::kBF16:
        return put_real<__nv_bfloat16>(to, at, x);
      case DType::kF16:
        return put_real<__half>(to, at, x);
      case DType::kI64:
        return put_integer<std::int64_t>(to, at, x);
      case DType::kI32:
        return put_integer<std::int32_t>(to, at, x);
      case DType::kI16:
        return put_integer<std::int16_t>(to, at, x);
      case DType::kU16:
        return put_integer<std::uint16_t>(to, at, x);
      case DType::kI8:
        return put_integer<std::int8_t>(to, at, x);
      default:
        return put_integer<std::uint8_t>(to, at, x);
    }
  }
};

// Calls body(T{}) with the unsigned type of this many bytes.
template <class Body>
void visit_size(std::size_t bytes, Body&& body) {
  switch (bytes) {
    case 1:
      return body(std::uint8_t{});
    case 2:
      return body(std::uint16_t{});
    case 4:
      return body(std::uint32_t{});
    default:
      return body(std::uint64_t{});
  }
}

void copy_on_device(Lane& lane, const Tensor& from, const Tensor& to) {
  constexpr const char* kWhat = "run copy";
  const cudaStream_t on = stream(lane);
  if (from.dtype() == to.dtype()) {
    visit_size(bytes_of(from.dtype()), [&]<class T>(T) {
      for_elements<kPerVector<T>>(on, kWhat, Move<T>{data<T>(from), from.ld(), data<T>(to), to.ld()}, from,
                                  to);
    });
  } else if (is_floating(from.dtype()) && is_floating(to.dtype())) {
    visit_floating(from.dtype(), [&]<class From>(From) {
      visit_floating(to.dtype(), [&]<class To>(To) {
        if constexpr (!std::is_same_v<From, To>) {
          constexpr int kN = std::min(kPerVector<From>, kPerVector<To>);
          for_elements<kN>(on, kWhat, Convert<From, To>{data<From>(from), from.ld(), data<To>(to), to.ld()},
                           from, to);
        }
      });
    });
  } else {
    for_elements<1>(on, kWhat, ConvertAny{from.raw(), from.ld(), from.dtype(), to.raw(), to.ld(), to.dtype()},
                    from, to);
  }
}

// Between host and device, of one dtype; returns when it is done.
void transfer(Lane& lane, const Tensor& from, const Tensor& to) {
  const std::size_t size = bytes_of(from.dtype());
  const auto bytes = [&](Index elems) { return static_cast<std::size_t>(elems) * size; };
  // Waits first: a copy of ordinary memory waits for its stream inside the driver, and holds up every other
  // thread that talks to this GPU: that of the rank, say, that the stream waits for.
  check(cudaStreamSynchronize(stream(lane)), "wait for what a copy needs");
  if (from.contiguous() && to.contiguous()) {
    check(cudaMemcpyAsync(to.raw(), from.raw(), from.bytes(), cudaMemcpyDefault, stream(lane)), "copy");
  } else {
    const auto pitch = [&](const Tensor& x) { return bytes(x.contiguous() ? x.columns() : x.ld()); };
    check(cudaMemcpy2DAsync(to.raw(), pitch(to), from.raw(), pitch(from), bytes(from.columns()),
                            static_cast<std::size_t>(from.rows()), cudaMemcpyDefault, stream(lane)),
          "copy rows");
  }
  check(cudaStreamSynchronize(stream(lane)), "wait for a copy");
}

// Host memory of x's shape for the length of a conversion.
struct HostCopy {
  HostCopy(const Tensor& x, DType dtype)
      : bytes(static_cast<std::size_t>(x.elems()) * bytes_of(dtype)),
        tensor(Tensor::borrow(bytes.data(), dtype, x.shape())) {}
  std::vector<std::byte> bytes;
  Tensor tensor;
};

// --- arithmetic in place
template <class T, class U>
struct Add {
  static constexpr int kUnroll = 2;
  T* x;
  Index x_ld;
  const U* y;
  Index y_ld;
  template <int N>
  struct In {
    Vec<T, N> x;
    Vec<U, N> y;
  };
  template <int N>
  __device__ In<N> load(Index t, Index, Index j) const {
    return {cuda::load<N>(x + t * x_ld + j), cuda::load<N>(y + t * y_ld + j)};
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const In<N>& in) const {
    Vec<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      out.v[i] = from_acc<T>(to_acc(in.x.v[i]) + static_cast<Acc<T>>(to_acc(in.y.v[i])));
    }
    store(x + t * x_ld + j, out);
  }
};

template <class T>
struct Scale {
  static constexpr int kUnroll = 4;
  T* x;
  Index ld;
  Acc<T> factor;
  template <int N>
  __device__ Vec<T, N> load(Index t, Index, Index j) const {
    return cuda::load<N>(x + t * ld + j);
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const Vec<T, N>& in) const {
    Vec<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = from_acc<T>(to_acc(in.v[i]) * factor);
    store(x + t * ld + j, out);
  }
};

// The least index of a value that is not finite, by an atomic minimum that only blocks which found one touch.
template <class T>
struct FindNonfinite {
  static constexpr int kUnroll = 4;
  const T* x;
  Index ld, columns;
  unsigned long long* least;
  template <int N>
  __device__ Vec<T, N> load(Index t, Index, Index j) const {
    return cuda::load<N>(x + t * ld + j);
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const Vec<T, N>& in) const {
    int first = N;
#pragma unroll
    for (int i = N - 1; i >= 0; --i) {
      if (!isfinite(to_acc(in.v[i]))) first = i;
    }
    if (first == N) return;
    const auto at = static_cast<unsigned long long>(t * columns + j + first);
    if (at < *static_cast<volatile unsigned long long*>(least)) atomicMin(least, at);
  }
};

// --- sums, in f64
constexpr int kSumPiece = 4096, kSumThreads = 256;  // of one block

template <class T>
__device__ double square(T x) {
  const auto v = static_cast<double>(to_acc(x));
  return v * v;
}

// Block i sums elements [4096 i, 4096 (i + 1)) of the rows laid end to end. Which thread adds what does not
// depend on strides or alignment.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kSumThreads)
    sum_pieces(const T* x, Index elems, Index columns, Index ld, double* partial) {
  constexpr int N = kPerVector<T>, kEach = kSumPiece / kSumThreads / N;
  __shared__ double shared[32];
  const Index begin = static_cast<Index>(blockIdx.x) * kSumPiece + threadIdx.x * N;
  Vec<T, N> in[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const Index at = begin + u * kSumThreads * N;
    if (kVectors && at + N <= elems) {
      in[u] = load<N>(x + at);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Index e = at + i;
        in[u].v[i] = T(0.0f);
        if (e < elems) in[u].v[i] = columns == ld ? x[e] : x[e / columns * ld + e % columns];
      }
    }
  }
  double sum = 0;
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum += static_cast<double>(to_acc(in[u].v[i]));
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One block: out = Σ partial.
__global__ void __launch_bounds__(1024) sum_partials(const double* partial, Index count, double* out) {
  __shared__ double shared[32];
  double sum = 0;
  for (Index i = threadIdx.x; i < count; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *out = sum;
}

// Block i: the squares of chunk i, from its first whole vector on; the elements before and after it one by
// one.
constexpr int kSquareThreads = 512;
template <class T>
__global__ void __launch_bounds__(kSquareThreads)
    sums_of_squares_chunks(const T* x, const std::int64_t* chunks, double* partial) {
  constexpr int N = kPerVector<T>, kUnroll = 4;
  __shared__ double shared[32];
  const std::int64_t* chunk = chunks + 4 * static_cast<Index>(blockIdx.x);
  const T* p = x + chunk[1];
  const auto elems = static_cast<int>(chunk[2]);
  const auto behind = static_cast<int>(reinterpret_cast<std::uintptr_t>(p) % 16 / sizeof(T));
  const int head = min(behind == 0 ? 0 : N - behind, elems), vectors = (elems - head) / N;
  const T* whole = p + head;
  double sum = 0;
  for (int i = threadIdx.x; i < vectors; i += kUnroll * kSquareThreads) {
    Vec<T, N> in[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * kSquareThreads < vectors) in[u] = load<N>(whole + (i + u * kSquareThreads) * N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * kSquareThreads < vectors) {
#pragma unroll
        for (int e = 0; e < N; ++e) sum += square(in[u].v[e]);
      }
    }
  }
  if (threadIdx.x < head) sum += square(p[threadIdx.x]);
  const int rest = head + vectors * N + static_cast<int>(threadIdx.x);
  if (rest < elems) sum += square(p[rest]);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// Block i: the partial sums of the chunks with tag i, in a fixed order.
__global__ void __launch_bounds__(1024)
    sum_by_tag(const std::int64_t* chunks, Index count, const double* partial, double* out) {
  __shared__ double shared[32];
  double sum = 0;
#pragma unroll 4
  for (Index i = threadIdx.x; i < count; i += blockDim.x) {
    if (chunks[4 * i + 3] == blockIdx.x) sum += partial[i];
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

}  // namespace

void fill(Lane& lane, const Tensor& x, double value) {
  alignas(8) std::byte one[8];
  cpu::fill(lane, Tensor::borrow(one, x.dtype(), {1}), value);
  visit_size(bytes_of(x.dtype()), [&]<class T>(T) {
    const T bits = *reinterpret_cast<const T*>(one);
    for_elements<kPerVector<T>>(stream(lane), "run fill", Fill<T>{data<T>(x), x.ld(), bits}, x);
  });
}

void copy(Lane& lane, const Tensor& from, const Tensor& to) {
  const bool from_host = from.device().kind == DeviceKind::kCpu,
             to_host = to.device().kind == DeviceKind::kCpu;
  if (from.elems() == 0) return;
  if (from_host && to_host) return cpu::copy(lane, from, to);
  if (!from_host && !to_host) return copy_on_device(lane, from, to);
  if (from.dtype() == to.dtype()) return transfer(lane, from, to);
  if (from_host) {
    const HostCopy converted(from, to.dtype());
    cpu::copy(lane, from, converted.tensor);
    transfer(lane, converted.tensor, to);
  } else {
    const HostCopy raw(from, from.dtype());
    transfer(lane, from, raw.tensor);
    cpu::copy(lane, raw.tensor, to);
  }
}

void upload(Lane& lane, const Tensor& from, const Tensor& to) {
  if (from.elems() == 0) return;
  tools(lane).staging.upload(stream(lane), from.raw(), to.raw(), from.bytes());
}

void add_in_place(Lane& lane, const Tensor& x, const Tensor& y) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    visit_floating(y.dtype(), [&]<class U>(U) {
      constexpr int kN = std::min(kPerVector<T>, kPerVector<U>);
      for_elements<kN>(stream(lane), "run add_in_place", Add<T, U>{data<T>(x), x.ld(), data<U>(y), y.ld()}, x,
                       y);
    });
  });
}

void scale_in_place(Lane& lane, const Tensor& x, double factor) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    for_elements<kPerVector<T>>(stream(lane), "run scale_in_place",
                                Scale<T>{data<T>(x), x.ld(), static_cast<Acc<T>>(factor)}, x);
  });
}

void sum(Lane& lane, const Tensor& x, const Tensor& partial, const Tensor& out) {
  double* pieces = data<double>(partial);
  const Index elems = x.elems(), count = (elems + kSumPiece - 1) / kSumPiece;
  if (elems > 0) {
    visit_floating(x.dtype(), [&]<class T>(T) {
      const bool vectors = x.contiguous() && aligned(x, kPerVector<T>);
      const Index ld = x.contiguous() ? x.columns() : x.ld();
      const auto kernel = vectors ? sum_pieces<T, true> : sum_pieces<T, false>;
      kernel<<<blocks_for(elems, kSumPiece), kSumThreads, 0, stream(lane)>>>(data<T>(x), elems, x.columns(),
                                                                             ld, pieces);
    });
    launched("run sum");
  }
  sum_partials<<<1, 1024, 0, stream(lane)>>>(pieces, count, data<double>(out));
  launched("run sum");
}

std::int64_t sums_of_squares_partials(const Lane&, const FlatPieces& pieces) {
  return pieces.most();
}

void sums_of_squares(Lane& lane, const FlatPieces& pieces, const Tensor& x, const Tensor& partial,
                     const Tensor& out) {
  const auto* chunks = data<std::int64_t>(pieces.chunks());
  const Index count = pieces.chunks().dim(0);
  if (count > 0) {
    visit_floating(x.dtype(), [&]<class T>(T) {
      sums_of_squares_chunks<<<static_cast<unsigned>(count), kSquareThreads, 0, stream(lane)>>>(
          data<T>(x), chunks, data<double>(partial));
    });
    launched("run sums_of_squares");
  }
  if (out.elems() == 0) return;
  sum_by_tag<<<static_cast<unsigned>(out.elems()), 1024, 0, stream(lane)>>>(
      chunks, count, data<double>(partial), data<double>(out));
  launched("run sums_of_squares");
}

void find_nonfinite(Lane& lane, const Tensor& x, const Tensor& found, std::int64_t& index) {
  // All bits set: −1 for the host, the largest number for the minimum.
  check(cudaMemsetAsync(found.raw(), 0xff, found.bytes(), stream(lane)), "clear memory");
  visit_floating(x.dtype(), [&]<class T>(T) {
    for_elements<kPerVector<T>>(
        stream(lane), "run find_nonfinite",
        FindNonfinite<T>{data<T>(x), x.ld(), x.columns(), data<unsigned long long>(found)}, x);
  });
  check(cudaMemcpyAsync(&index, found.raw(), sizeof index, cudaMemcpyDefault, stream(lane)), "copy");
  check(cudaStreamSynchronize(stream(lane)), "wait for a copy");
}

}  // namespace weft::ops::cuda
