#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "ops/cuda/spans.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

template <class T>
struct LookUp {
  static constexpr int kUnroll = 4;
  const std::int32_t* ids;  // [batch, length]
  const T* table;
  Index table_ld, first_row, rows;
  T* y;
  Index y_ld, batch, length;
  template <int N>
  __device__ Vec<T, N> load(Index t, Index b, Index j) const {
    const Index row = ids[b * length + t] - first_row;
    if (row >= 0 && row < rows) return cuda::load<N>(table + row * table_ld + j);
    Vec<T, N> none;
#pragma unroll
    for (int i = 0; i < N; ++i) none.v[i] = T(0.0f);
    return none;
  }
  template <int N>
  __device__ void run(Index t, Index b, Index j, const Vec<T, N>& in) const {
    store(y + (t * batch + b) * y_ld + j, in);
  }
};

template <class T>
struct AddPositions {
  static constexpr int kUnroll = 2;
  T* x;
  Index x_ld, batch;
  const T* table;  // from the first position on
  Index table_ld;
  template <int N>
  struct In {
    Vec<T, N> x, row;
  };
  template <int N>
  __device__ In<N> load(Index t, Index b, Index j) const {
    return {cuda::load<N>(x + (t * batch + b) * x_ld + j), cuda::load<N>(table + t * table_ld + j)};
  }
  template <int N>
  __device__ void run(Index t, Index b, Index j, const In<N>& in) const {
    Vec<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = from_acc<T>(to_acc(in.x.v[i]) + to_acc(in.row.v[i]));
    store(x + (t * batch + b) * x_ld + j, out);
  }
};

// Row t of dtable: beta · row + the sum of dy's rows of that position, in order of b.
template <class T>
struct SumPositions {
  static constexpr int kUnroll = 1;
  const T* dy;
  Index dy_ld, batch, length, first_position;
  Acc<T>* dtable;
  Index dtable_ld;
  Acc<T> beta;
  template <int N>
  __device__ Nothing load(Index, Index, Index) const {
    return {};
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, Nothing) const {
    Acc<T>* row = dtable + t * dtable_ld + j;
    Vec<Acc<T>, N> sum;
#pragma unroll
    for (int i = 0; i < N; ++i) sum.v[i] = Acc<T>{0};
    if (beta != Acc<T>{0}) {
      sum = cuda::load<N>(row);
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] *= beta;
    }
    const Index position = t - first_position;
    if (position >= 0 && position < length) {
      const T* p = dy + position * batch * dy_ld + j;
#pragma unroll 4
      for (Index b = 0; b < batch; ++b) {
        const Vec<T, N> in = cuda::load<N>(p + b * dy_ld);
#pragma unroll
        for (int i = 0; i < N; ++i) sum.v[i] += to_acc(in.v[i]);
      }
    }
    store(row, sum);
  }
};

// --- the gradient of the table: (row, token) pairs sorted by row, tokens of a row staying in order; then
// each block sums one segment of kSegment pairs, for some columns, one run of equal rows after another. A run
// that lies in one segment goes to the table at once. Of a run that goes on, each segment but the last leaves
// its part in `open` [segments, h], the last one in `closing` [segments, h]; a second kernel adds them in
// order.
constexpr int kSegment = 64;

// Scratch, cut up: sizes depend on shapes alone.
struct ScatterScratch {
  ScatterScratch(Index token_count, Index columns, std::size_t element_bytes)
      : tokens(token_count), segments((token_count + kSegment - 1) / kSegment) {
    const auto take = [&](Index n) {
      const Index at = bytes;
      bytes += (n + 255) / 256 * 256;
      return at;
    };
    for (Index& at : keys) at = take(4 * tokens);
    for (Index& at : values) at = take(4 * tokens);
    // What the sort wants: counters for each tile of thousands of pairs. Checked when it runs.
    sort_bytes = 2 * tokens + (Index{1} << 20);
    sort = take(sort_bytes);
    const Index part = segments * columns * static_cast<Index>(element_bytes);
    open = take(part);
    closing = take(part);
  }
  Index tokens, segments, bytes = 0;
  Index keys[2], values[2], sort, sort_bytes, open, closing;
};

// Key: the row in this table, or `rows` for tokens of other tables. Value: the row of dy.
__global__ void __launch_bounds__(256)
    make_pairs(const std::int32_t* ids, std::uint32_t length, std::uint32_t batch, Index first_row,
               Index rows, std::uint32_t tokens, std::uint32_t* keys, std::uint32_t* values) {
  const std::uint32_t i = blockIdx.x * 256 + threadIdx.x;
  if (i >= tokens) return;
  const std::uint32_t t = i / batch, b = i - t * batch;
  const Index row = ids[static_cast<Index>(b) * length + t] - first_row;
  keys[i] = static_cast<std::uint32_t>(row >= 0 && row < rows ? row : rows);
  values[i] = i;
}

// Scatter: what both kernels know.
template <class T>
struct Scatter {
  const std::uint32_t *keys, *values;  // sorted
  Index tokens, h, rows;
  const T* dy;
  Index dy_ld;
  Acc<T>* dtable;
  Index dtable_ld;
  Acc<T>*open, *closing;
  bool add;  // to what dtable holds

  template <int N>
  __device__ void write(std::uint32_t key, Index j, Vec<Acc<T>, N> sum) const {
    Acc<T>* to = dtable + key * dtable_ld + j;
    if (add) {
      const Vec<Acc<T>, N> old = load<N>(to);
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] += old.v[i];
    }
    store(to, sum);
  }
};

template <int N, class A>
__device__ Vec<A, N> zero() {
  Vec<A, N> z;
#pragma unroll
  for (int i = 0; i < N; ++i) z.v[i] = A{0};
  return z;
}

// Block (segment, columns).
template <class T, int N>
__global__ void __launch_bounds__(256) sum_segments(const Scatter<T> s) {
  using A = Acc<T>;
  constexpr int kAhead = 8;  // rows loaded before the first is added
  __shared__ std::uint32_t keys[kSegment], values[kSegment];
  const Index begin = static_cast<Index>(blockIdx.x) * kSegment;
  const int count = static_cast<int>(min(static_cast<Index>(kSegment), s.tokens - begin));
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    keys[i] = s.keys[begin + i];
    values[i] = s.values[begin + i];
  }
  __syncthreads();
  const auto none = static_cast<std::uint32_t>(s.rows);
  if (keys[0] == none) return;  // sorted: nothing of this table from here on
  const bool began_before = begin > 0 && s.keys[begin - 1] == keys[0];
  const bool goes_on = begin + count < s.tokens && s.keys[begin + count] == keys[count - 1];
  for (Index j = (static_cast<Index>(blockIdx.y) * blockDim.x + threadIdx.x) * N; j < s.h;
       j += static_cast<Index>(gridDim.y) * blockDim.x * N) {
    Vec<A, N> sum = zero<N, A>();
    bool first_run = true;
    for (int i = 0; i < count; i += kAhead) {
      Vec<T, N> in[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (i + u < count && keys[i + u] != none) in[u] = load<N>(s.dy + values[i + u] * s.dy_ld + j);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int at = i + u;
        if (at >= count || keys[at] == none) continue;
#pragma unroll
        for (int e = 0; e < N; ++e) sum.v[e] += to_acc(in[u].v[e]);
        if (at + 1 < count && keys[at + 1] == keys[at]) continue;
        // The run ends here, or with the segment.
        if (at + 1 == count && goes_on) {
          store(s.open + blockIdx.x * s.h + j, sum);
        } else if (first_run && began_before) {
          store(s.closing + blockIdx.x * s.h + j, sum);
        } else {
          s.write(keys[at], j, sum);
        }
        sum = zero<N, A>();
        first_run = false;
      }
    }
  }
}

// Block (segment, columns): the run that comes from an earlier segment and ends in this one, if there is one.
template <class T, int N>
__global__ void __launch_bounds__(256) join_segments(const Scatter<T> s) {
  using A = Acc<T>;
  const Index segment = blockIdx.x + Index{1}, begin = segment * kSegment;
  const std::uint32_t key = s.keys[begin];
  if (key == static_cast<std::uint32_t>(s.rows) || s.keys[begin - 1] != key) return;
  const Index end = min(begin + kSegment, s.tokens);
  if (end < s.tokens && s.keys[end] == key) return;  // goes on: its last segment joins it
  Index low = 0, high = begin - 1;                   // the first pair of this row is in [low, high]
  while (low < high) {
    const Index middle = (low + high) / 2;
    if (s.keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const Index first = low / kSegment;
  for (Index j = (static_cast<Index>(blockIdx.y) * blockDim.x + threadIdx.x) * N; j < s.h;
       j += static_cast<Index>(gridDim.y) * blockDim.x * N) {
    Vec<A, N> sum = zero<N, A>();
#pragma unroll 8
    for (Index i = first; i < segment; ++i) {
      const Vec<A, N> part = load<N>(s.open + i * s.h + j);
#pragma unroll
      for (int e = 0; e < N; ++e) sum.v[e] += part.v[e];
    }
    const Vec<A, N> part = load<N>(s.closing + segment * s.h + j);
#pragma unroll
    for (int e = 0; e < N; ++e) sum.v[e] += part.v[e];
    s.write(key, j, sum);
  }
}

// Blocks for `columns` of h, N to a thread.
struct Columns {
  Columns(Index h, int n) {
    const Index vectors = h / n, tiles = (vectors + 255) / 256;
    threads = static_cast<unsigned>(((vectors + tiles - 1) / tiles + 31) / 32 * 32);
    blocks = static_cast<unsigned>(std::min<Index>(tiles, 65535));
  }
  unsigned threads, blocks;
};

template <class T, int N>
void run_scatter(cudaStream_t on, const Scatter<T>& scatter, Index segments) {
  constexpr const char* kWhat = "run embedding_backward";
  const Columns columns(scatter.h, N);
  const dim3 grid(static_cast<unsigned>(segments), columns.blocks);
  sum_segments<T, N><<<grid, columns.threads, 0, on>>>(scatter);
  launched(kWhat);
  if (segments == 1) return;
  constexpr int kJoin = std::min(N, static_cast<int>(kPerVector<Acc<T>>));
  const Columns narrow(scatter.h, kJoin);
  const dim3 join(static_cast<unsigned>(segments - 1), narrow.blocks);
  join_segments<T, kJoin><<<join, narrow.threads, 0, on>>>(scatter);
  launched(kWhat);
}

}  // namespace

void embedding(Lane& lane, const Tensor& ids, const Tensor& table, std::int64_t first_row, const Tensor& y) {
  visit_floating(table.dtype(), [&]<class T>(T) {
    constexpr int N = kPerVector<T>;
    const LookUp<T> op{data<std::int32_t>(ids),
                       data<T>(table),
                       table.ld(),
                       first_row,
                       table.dim(0),
                       data<T>(y),
                       y.ld(),
                       y.dim(1),
                       y.dim(0)};
    for_tokens<N>(stream(lane), "run embedding", op, y.dim(0), y.dim(1), y.columns(),
                  vectorizable(table, N) && vectorizable(y, N));
  });
}

std::int64_t embedding_backward_scratch(const Lane&, const Tensor& dy, const Tensor& dtable) {
  return ScatterScratch(dy.rows(), dtable.columns(), bytes_of(dtable.dtype())).bytes;
}

void embedding_backward(Lane& lane, const Tensor& dy, const Tensor& ids, const Tensor& dtable,
                        std::int64_t first_row, float beta, const Tensor& scratch) {
  const cudaStream_t on = stream(lane);
  if (beta == 0) {
    fill(lane, dtable, 0);
  } else if (beta != 1) {
    scale_in_place(lane, dtable, static_cast<double>(beta));
  }
  const Index tokens = dy.rows(), rows = dtable.dim(0), h = dtable.columns();
  if (tokens == 0 || rows == 0 || h == 0) return;
  WEFT_CHECK(
      tokens < std::numeric_limits<std::int32_t>::max() && rows < std::numeric_limits<std::int32_t>::max(),
      "embedding_backward: {} tokens, {} rows", tokens, rows);
  const ScatterScratch at(tokens, h, bytes_of(dtable.dtype()));
  const auto numbers = [&](Index offset) { return reinterpret_cast<std::uint32_t*>(scratch.raw() + offset); };
  make_pairs<<<blocks_for(tokens, 256), 256, 0, on>>>(
      data<std::int32_t>(ids), static_cast<std::uint32_t>(dy.dim(0)), static_cast<std::uint32_t>(dy.dim(1)),
      first_row, rows, static_cast<std::uint32_t>(tokens), numbers(at.keys[0]), numbers(at.values[0]));
  launched("run embedding_backward");

  cub::DoubleBuffer<std::uint32_t> keys(numbers(at.keys[0]), numbers(at.keys[1])),
      values(numbers(at.values[0]), numbers(at.values[1]));
  const int bits = std::bit_width(static_cast<std::uint32_t>(rows));
  std::size_t wanted = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, wanted, keys, values, static_cast<int>(tokens), 0, bits, on),
        "plan a sort");
  WEFT_CHECK(wanted <= static_cast<std::size_t>(at.sort_bytes),
             "embedding_backward: a sort of {} pairs wants {} bytes, {} are planned", tokens, wanted,
             at.sort_bytes);
  check(cub::DeviceRadixSort::SortPairs(scratch.raw() + at.sort, wanted, keys, values,
                                        static_cast<int>(tokens), 0, bits, on),
        "sort");

  visit_floating(dy.dtype(), [&]<class T>(T) {
    constexpr int N = kPerVector<T>;
    auto* open = reinterpret_cast<Acc<T>*>(scratch.raw() + at.open);
    auto* closing = reinterpret_cast<Acc<T>*>(scratch.raw() + at.closing);
    const Scatter<T> scatter{keys.Current(), values.Current(),     tokens,      h,    rows,    data<T>(dy),
                             dy.ld(),        data<Acc<T>>(dtable), dtable.ld(), open, closing, beta != 0};
    vectorizable(dy, N) && vectorizable(dtable, N) ? run_scatter<T, N>(on, scatter, at.segments)
                                                   : run_scatter<T, 1>(on, scatter, at.segments);
  });
}

void add_positions(Lane& lane, const Tensor& x, const Tensor& table, std::int64_t first_position) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    constexpr int N = kPerVector<T>;
    const AddPositions<T> op{data<T>(x), x.ld(), x.dim(1), data<T>(table) + first_position * table.ld(),
                             table.ld()};
    for_tokens<N>(stream(lane), "run add_positions", op, x.dim(0), x.dim(1), x.columns(),
                  vectorizable(x, N) && vectorizable(table, N));
  });
}

void add_positions_backward(Lane& lane, const Tensor& dy, const Tensor& dtable, std::int64_t first_position,
                            float beta) {
  const Tensor touched = beta == 1 ? dtable.slice(first_position, dy.dim(0)) : dtable;
  visit_floating(dy.dtype(), [&]<class T>(T) {
    constexpr int N = kPerVector<T>;
    const SumPositions<T> op{data<T>(dy),
                             dy.ld(),
                             dy.dim(1),
                             dy.dim(0),
                             beta == 1 ? 0 : first_position,
                             data<Acc<T>>(touched),
                             touched.ld(),
                             static_cast<Acc<T>>(beta)};
    for_tokens<N>(stream(lane), "run add_positions_backward", op, touched.dim(0), 1, touched.columns(),
                  vectorizable(dy, N) && vectorizable(touched, N));
  });
}

}  // namespace weft::ops::cuda
