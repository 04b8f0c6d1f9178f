// Which kernel makes products of experts, and a plain one for what the matrix units do not take: f32, f64,
// odd sizes.
#include "ops/cuda/grouped_tiles.cuh"

namespace weft::ops::cuda {

CUtensorMap box_map(const Lane& lane, const Tensor& x, Index rows, int box_rows) {
  const auto count = [](Index n) { return static_cast<cuuint64_t>(n); };
  const Index row_bytes = x.ld() * 2;
  const cuuint64_t sizes[3] = {count(x.dim(1)), count(rows), count(x.dim(0) / rows)};
  const cuuint64_t strides[2] = {count(row_bytes), count(row_bytes * rows)};
  const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_rows), 1}, steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result = tools(lane).encode_tensor_map(
      &map, x.dtype() == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
      x.raw(), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WEFT_CHECK(result == CUDA_SUCCESS, "grouped_gemm: cannot describe {} x {} of {} elements ({})", rows,
             x.dim(1), x.ld(), static_cast<int>(result));
  return map;
}

namespace {

constexpr int kTile = 64, kDepth = 16, kSide = 16;  // of results, of the sum; threads along each side

// a and b of an expert: element (row or column of the result, place in the sum).
template <class T>
struct Matrix {
  const T* data;
  Index ld;
  bool down;  // the sum runs down the rows
  __device__ T operator()(Index i, Index k) const { return down ? data[k * ld + i] : data[i * ld + k]; }
};

// A tile of c [rows, columns]. A block has kSide · kSide threads, each of which makes 4 × 4 elements.
template <class T, class C>
__device__ void plain_tile(const Matrix<T>& a, const Matrix<T>& b, Index rows, Index columns, Index depth,
                           Index row, Index column, C* c, Index c_ld, float beta) {
  using A = Acc<T>;
  constexpr int kEach = kTile / kSide;
  __shared__ A as[kDepth][kTile + 1], bs[kDepth][kTile + 1];
  A sums[kEach][kEach] = {};
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  for (Index k = 0; k < depth; k += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kSide * kSide) {
      const int ka = a.down ? i / kTile : i % kDepth, ra = a.down ? i % kTile : i / kDepth;
      const int kb = b.down ? i / kTile : i % kDepth, rb = b.down ? i % kTile : i / kDepth;
      as[ka][ra] = k + ka < depth && row + ra < rows ? to_acc(a(row + ra, k + ka)) : A{0};
      bs[kb][rb] = k + kb < depth && column + rb < columns ? to_acc(b(column + rb, k + kb)) : A{0};
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kDepth; ++j) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int q = 0; q < kEach; ++q) sums[r][q] += as[j][y + r * kSide] * bs[j][x + q * kSide];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int q = 0; q < kEach; ++q) {
      const Index i = row + y + r * kSide, j = column + x + q * kSide;
      if (i >= rows || j >= columns) continue;
      C* to = c + i * c_ld + j;
      const A sum = beta != 0 ? static_cast<A>(to_acc(*to)) + sums[r][q] : sums[r][q];
      *to = from_acc<C>(static_cast<Acc<C>>(sum));
    }
  }
}

struct Plain {
  const std::int32_t* offsets;
  Index experts, out, in, a_ld, b_ld, c_ld, rows;
  float beta;
};

// Rows of experts: block y looks up which tile of rows it has. The last ones find none.
template <class T, bool kTransposed>
__global__ void __launch_bounds__(kSide* kSide) plain_rows(const Plain p, const T* a, const T* b, T* c) {
  const Index columns = kTransposed ? p.out : p.in, depth = kTransposed ? p.in : p.out;
  Index tile = blockIdx.y;
  for (Index e = 0; e < p.experts; ++e) {
    const Index first = p.offsets[e], rows = p.offsets[e + 1] - first, n = (rows + kTile - 1) / kTile;
    if (tile < n) {
      plain_tile(Matrix<T>{a + first * p.a_ld, p.a_ld, false},
                 Matrix<T>{b + e * p.out * p.b_ld, p.b_ld, !kTransposed}, rows, columns, depth, tile * kTile,
                 Index{blockIdx.x} * kTile, c + first * p.c_ld, p.c_ld, 0.0f);
      return;
    }
    tile -= n;
  }
  // What is left clears the rows of nobody, a tile each.
  const Index first = p.offsets[p.experts] + tile * kTile;
  for (int i = threadIdx.x; i < kTile * kTile; i += kSide * kSide) {
    const Index r = first + i / kTile, j = Index{blockIdx.x} * kTile + i % kTile;
    if (r < p.rows && j < columns) c[r * p.c_ld + j] = from_acc<T>(0);
  }
}

template <class T, class C>
__global__ void __launch_bounds__(kSide* kSide) plain_gradient(const Plain p, const T* a, const T* b, C* c) {
  const Index e = blockIdx.z, first = p.offsets[e], depth = p.offsets[e + 1] - first;
  if (depth == 0 && p.beta != 0) return;
  plain_tile(Matrix<T>{a + first * p.a_ld, p.a_ld, true}, Matrix<T>{b + first * p.b_ld, p.b_ld, true}, p.out,
             p.in, depth, Index{blockIdx.y} * kTile, Index{blockIdx.x} * kTile, c + e * p.out * p.c_ld,
             p.c_ld, p.beta);
}

void plain(Lane& lane, const GroupedGemm& g) {
  const Plain p{g.offsets.data<std::int32_t>(),
                g.experts(),
                g.out(),
                g.in(),
                g.a.ld(),
                g.b.ld(),
                g.c.ld(),
                g.rows(),
                g.beta};
  visit_floating(g.a.dtype(), [&]<class T>(T) {
    const T *a = data<T>(g.a), *b = data<T>(g.b);
    if (g.form == Gemm::Form::kTN) {
      const dim3 grid(blocks_for(g.in(), kTile), blocks_for(g.out(), kTile),
                      static_cast<unsigned>(g.experts()));
      if (g.c.dtype() == g.a.dtype()) {
        plain_gradient<<<grid, kSide * kSide, 0, stream(lane)>>>(p, a, b, data<T>(g.c));
      } else {
        plain_gradient<<<grid, kSide * kSide, 0, stream(lane)>>>(p, a, b, data<Acc<T>>(g.c));
      }
    } else {
      // Each expert may end within a tile, and so may what is nobody's begin.
      const auto high = static_cast<unsigned>(g.rows() / kTile + g.experts() + 2);
      const bool transposed = g.form == Gemm::Form::kNT;
      const dim3 grid(blocks_for(transposed ? g.out() : g.in(), kTile), high);
      transposed ? plain_rows<T, true><<<grid, kSide * kSide, 0, stream(lane)>>>(p, a, b, data<T>(g.c))
                 : plain_rows<T, false><<<grid, kSide * kSide, 0, stream(lane)>>>(p, a, b, data<T>(g.c));
    }
  });
  launched("run grouped_gemm");
}

// What the copy engine and stores of 16 bytes ask for.
bool in_boxes(const Tensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.raw()) % 16 == 0 && x.ld() % 8 == 0 && x.dim(1) % 8 == 0;
}
bool takes_tiles(const Lane& lane, const GroupedGemm& g) {
  return tools(lane).encode_tensor_map != nullptr && bytes_of(g.a.dtype()) == 2 && g.rows() > 0 &&
         g.out() % 8 == 0 && in_boxes(g.a) && in_boxes(g.b) && in_boxes(g.c);
}

}  // namespace

std::int64_t grouped_gemm_scratch(const Lane&, const GroupedGemm&) {
  return 0;
}

void grouped_gemm(Lane& lane, const GroupedGemm& g, const Tensor&) {
  if (!takes_tiles(lane, g)) return plain(lane, g);
  switch (g.form) {
    case Gemm::Form::kNT:
      return grouped_tiles_nt(lane, g);
    case Gemm::Form::kNN:
      return grouped_tiles_nn(lane, g);
    case Gemm::Form::kTN:
      return grouped_tiles_tn(lane, g);
  }
}

}  // namespace weft::ops::cuda
