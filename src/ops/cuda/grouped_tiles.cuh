// Products of experts on Hopper's matrix units. All blocks stay and take tiles of 128 × 256 results by turns;
// a cluster of two blocks works on two tiles at once that share an operand, each block bringing half of it to
// both: two tiles of rows with one tile of weights, or, where an expert's last tile of rows has no neighbour,
// one tile of rows with two of weights. In a block one warp brings operands, 64 of the sum at a time, into a
// ring of kStages places, and two groups of four warps multiply, each 64 rows of the tile; a group without
// rows leaves the matrix units to the other.
//
// The memory of all experts is one tensor to the copy engine: rows past an expert's end are another's, and
// give results that nobody stores. Where the sum runs over an expert's rows (gradients), what lies past the
// end is cleared in shared memory.
#pragma once

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/kernel.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {

namespace tiles {

constexpr int kRows = 128, kColumns = 256, kDepth = 64;  // of a block's tile; of the sum at a time
constexpr int kStages = 4;
constexpr int kGroups = 2;  // that multiply
constexpr int kThreads = 128 * (1 + kGroups);
constexpr int kBox = 64 * 128;  // bytes of 64 × 64 elements
constexpr int kABytes = kRows * 128, kBBytes = kColumns * 128, kStageBytes = kABytes + kBBytes;
// Of each warp that multiplies: 16 rows of 128 results on their way out.
constexpr int kWayOut = 16 * 256;
constexpr int kSharedBytes = kStages * kStageBytes + 4 * kGroups * kWayOut + kStages * 16;
constexpr int kPairsAtOnce = 8;  // pairs of row tiles that share columns of weights in the cache

}  // namespace tiles

// What a kernel is told; the maps describe the operands to the copy engine.
struct GroupedTiles {
  const std::int32_t* offsets;
  void* c;
  Index c_ld, c_rows;
  int experts;
  int rows;     // of a result where they are the same for each expert (gradients), else 0
  int columns;  // of a result
  int depth;    // of the sum, else 0
  float beta;
};

// What of an expert's result a block makes next.
struct Tile {
  int expert, first;  // its rows begin here
  int row, rows;      // of the result: the tile's first, and how many the expert has
  int column;
  int depth;
  bool shares_rows;  // with the other block of the cluster, else columns
};

// Finds the tiles that a cluster takes: those of all experts in a row, every gridDim / 2-th. The lanes of a
// warp look at 32 experts at a time; `next` must grow.
class TileList {
 public:
  __device__ TileList(const GroupedTiles& g, int block_of_cluster) : g_(g), block_(block_of_cluster) {
    look(0, 0);
  }
  __device__ bool find(int next, Tile& tile) {
    unsigned after;
    while ((after = __ballot_sync(~0u, end_ > next)) == 0) {
      const int total = __shfl_sync(~0u, end_, 31);
      if (base_ + 32 >= g_.experts) return false;
      look(base_ + 32, total);
    }
    const int lane = __ffs(after) - 1;
    const int begin = __shfl_sync(~0u, begin_, lane);
    tile.expert = base_ + lane;
    tile.first = __shfl_sync(~0u, first_, lane);
    const int count = __shfl_sync(~0u, count_, lane);
    tile.rows = g_.rows > 0 ? g_.rows : count;
    tile.depth = g_.rows > 0 ? count : g_.depth;
    place(next - begin, tile);
    return true;
  }

 private:
  __device__ int columns() const { return (g_.columns + tiles::kColumns - 1) / tiles::kColumns; }
  // Two tiles of rows; the last may be none.
  __device__ static int pairs(int rows) { return (rows + tiles::kRows - 1) / (2 * tiles::kRows); }
  __device__ static bool alone(int rows) {  // one tile of rows is left
    const int rest = rows % (2 * tiles::kRows);
    return rest > 0 && rest <= tiles::kRows;
  }
  __device__ void look(int base, int before) {
    base_ = base;
    const int lane = threadIdx.x % 32, e = base + lane;
    first_ = count_ = 0;
    int n = 0;
    if (e < g_.experts) {
      first_ = g_.offsets[e];
      count_ = g_.offsets[e + 1] - first_;
      const int rows = g_.rows > 0 ? g_.rows : count_;
      n = pairs(rows) * columns() + (alone(rows) ? (columns() + 1) / 2 : 0);
    }
    int sum = n;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += other;
    }
    end_ = before + sum;
    begin_ = end_ - n;
  }
  __device__ void place(int i, Tile& tile) const {
    const int full = pairs(tile.rows), wide = columns();
    tile.shares_rows = i >= full * wide;
    if (tile.shares_rows) {
      tile.row = full * 2 * tiles::kRows;
      tile.column = (2 * (i - full * wide) + block_) * tiles::kColumns;
      return;
    }
    const int batch = i / (tiles::kPairsAtOnce * wide);
    const int height = min(tiles::kPairsAtOnce, full - batch * tiles::kPairsAtOnce);
    i -= batch * tiles::kPairsAtOnce * wide;
    tile.row = (2 * (batch * tiles::kPairsAtOnce + i % height) + block_) * tiles::kRows;
    tile.column = i / height * tiles::kColumns;
  }

  const GroupedTiles& g_;
  int block_;
  int base_ = 0, first_ = 0, count_ = 0, begin_ = 0, end_ = 0;
};

// Places of the ring, in turn.
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    if (++stage == tiles::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// kForm's operands: a runs along its sum where it holds rows (NT, NN) and down it in gradients; b along it
// for NT.
template <Gemm::Form kForm>
struct Operands {
  static constexpr bool kADown = kForm == Gemm::Form::kTN, kBDown = kForm != Gemm::Form::kNT;
  // Both operands of the sum's [k, k + kDepth); `other`: its half of what is shared comes from the other
  // block.
  __device__ static void bring(const void* a_map, const void* b_map, const Tile& t, int k, int block,
                               std::uint32_t to, std::uint32_t full) {
    const auto a = [&](int box, bool both) {
      const std::uint32_t at = to + box * tiles::kBox;
      const int row = t.row + box * 64;
      const int x = kADown ? row : k, y = kADown ? t.first + k : t.first + row;
      both ? hopper::load_box_to_both(at, a_map, full, x, y, 0) : hopper::load_box(at, a_map, full, x, y, 0);
    };
    const auto b = [&](int box, bool both) {  // of 64 columns, or of 128 where b runs along the sum
      const std::uint32_t at = to + tiles::kABytes + box * tiles::kBox * (kBDown ? 1 : 2);
      const int column = t.column + box * (kBDown ? 64 : 128);
      const int x = kBDown ? column : k, z = kForm == Gemm::Form::kTN ? 0 : t.expert;
      const int y = !kBDown ? column : kForm == Gemm::Form::kTN ? t.first + k : k;
      both ? hopper::load_box_to_both(at, b_map, full, x, y, z) : hopper::load_box(at, b_map, full, x, y, z);
    };
    constexpr int kBBoxes = kBDown ? 4 : 2;
    if (t.shares_rows) {
      a(block, true);
#pragma unroll
      for (int i = 0; i < kBBoxes; ++i) b(i, false);
    } else {
      a(0, false);
      a(1, false);
#pragma unroll
      for (int i = 0; i < kBBoxes / 2; ++i) b(block * (kBBoxes / 2) + i, true);
    }
  }
};

// c = sums (+ beta · c) of 64 rows: `c` points to the first row, of which `rows` and `columns` of each exist.
// Each element is rounded once. 16-bit results pass through the warp's own shared memory `way_out`, whose
// chunks of 16 bytes are exchanged within a row so that no two of a column share a bank, and leave as whole
// lines.
template <class C>
__device__ inline void store_tile(float (&d)[128], C* c, Index ld, int rows, int columns, float beta,
                                  std::uint32_t way_out) {
  const int lane = threadIdx.x % 32, quad = lane % 4, first = threadIdx.x % 128 / 32 * 16;
  if (beta != 0 || sizeof(C) == 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + lane / 4 + 8 * half;
      if (row >= rows) continue;
      C* to = c + row * ld;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        const int column = 8 * j + 2 * quad;
        if (column >= columns) continue;
        float &x = d[4 * j + 2 * half], &y = d[4 * j + 2 * half + 1];
        if (beta != 0) {
          const Vec<C, 2> old = load<2>(to + column);
          x += to_acc(old.v[0]);
          y += to_acc(old.v[1]);
        }
        if constexpr (sizeof(C) == 4) *reinterpret_cast<float2*>(to + column) = {x, y};
      }
    }
  }
  if constexpr (sizeof(C) == 2) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {  // of 128 columns
#pragma unroll
      for (int j = 0; j < 16; j += 2) {
        const int row = lane % 16, chunk = j + lane / 16;
        std::uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* at = d + 4 * (16 * part + j) + 2 * i;
          const float pair[2] = {at[0], at[1]};
          const Vec<C, 2> v = rounded<C>(pair);
          memcpy(&w[i], &v, 4);
        }
        hopper::store_matrices(way_out + row * 256 + (chunk ^ row % 8) * 16, w);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = 2 * i + lane / 16, chunk = lane % 16, column = 128 * part + 8 * chunk;
        const uint4 w = hopper::load_shared(way_out + row * 256 + (chunk ^ row % 8) * 16);
        if (first + row < rows && column < columns) {
          Vec<C, 8> v;
          memcpy(&v, &w, sizeof(v));
          store(c + (first + row) * ld + column, v);
        }
      }
      __syncwarp();
    }
  }
}

// The same of an expert that has no rows: c = 0.
template <class C>
__device__ inline void clear_tile(C* c, Index ld, int rows, int columns) {
  constexpr int N = 16 / sizeof(C), kAcross = tiles::kColumns / N;
  for (int i = threadIdx.x % 128; i < 64 * kAcross; i += 128) {
    const int row = i / kAcross, column = i % kAcross * N;
    if (row < rows && column < columns) store(c + row * ld + column, Vec<C, N>{});
  }
}

// Rows of c that are no expert's become 0.
template <class C>
__device__ void clear_rest(const GroupedTiles& g) {
  const Index first = g.offsets[g.experts];
  for (Index row = first + blockIdx.x; row < g.c_rows; row += gridDim.x) {
    C* to = static_cast<C*>(g.c) + row * g.c_ld;
    for (int j = 8 * (threadIdx.x - 128); j < g.columns; j += 8 * 128 * tiles::kGroups) {
      Vec<C, 8> none{};
      store(to + j, none);
    }
  }
}

// Rows [first, last) of boxes of 64 rows of 128 bytes become 0, by four warps.
template <int kBoxes>
__device__ inline void clear_rows(std::uint32_t boxes_at, int first, int last) {
  const int at = first * 128 + threadIdx.x % 128 * 16;
  if (at >= last * 128) return;  // fewer than 16 rows: 16 bytes a thread
#pragma unroll
  for (int i = 0; i < kBoxes; ++i) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(boxes_at + i * tiles::kBox + at), "r"(0)
                 : "memory");
  }
}

// The four warps of a group: sums of its 64 rows of the tile into d.
// `meanwhile` is called while products are under way.
template <Gemm::Form kForm, class T, class Meanwhile>
__device__ inline void multiply(float (&d)[128], const Tile& t, int group, bool any, std::uint32_t stages,
                                std::uint32_t full, std::uint32_t empty, Ring& ring,
                                const Meanwhile& meanwhile) {
  constexpr bool kADown = Operands<kForm>::kADown, kBDown = Operands<kForm>::kBDown;
  constexpr bool kRagged = kForm == Gemm::Form::kTN;
  const int lane = threadIdx.x % 32, steps = (t.depth + tiles::kDepth - 1) / tiles::kDepth;
  const auto release = [&](int stage) {  // in both blocks: each brings to both
    if (lane < 2) hopper::barrier_arrive(empty + 8 * stage, lane);
  };
  if (!any) {
    for (int step = 0; step < steps; ++step, ring.next()) {
      hopper::barrier_wait(full + 8 * ring.stage, ring.parity);
      release(ring.stage);
    }
    meanwhile();
    return;
  }
  // The whole steps, and for a gradient what is left of an expert's rows.
  const int whole = kRagged ? t.depth / tiles::kDepth : steps;
  int before = -1;
#pragma unroll 1
  for (int step = 0; step < whole; ++step, ring.next()) {
    hopper::barrier_wait(full + 8 * ring.stage, ring.parity);
    const std::uint32_t at = stages + ring.stage * tiles::kStageBytes;
    const std::uint64_t a = hopper::operand<kADown>(at + group * tiles::kBox, tiles::kBox),
                        b = hopper::operand<kBDown>(at + tiles::kABytes, tiles::kBox);
    hopper::products_begin();
#pragma unroll
    for (int i = 0; i < tiles::kDepth / 16; ++i) {
      hopper::product<T, kADown, kBDown>(d, a + i * hopper::kOperandStep<kADown>,
                                         b + i * hopper::kOperandStep<kBDown>, step > 0 || i > 0);
    }
    hopper::products_commit();
    hopper::products_wait<1>();
    if (before >= 0) release(before);
    before = ring.stage;
  }
  if (kRagged && whole < steps) {
    const int rest = t.depth % tiles::kDepth, parts = (rest + 15) / 16;
    hopper::barrier_wait(full + 8 * ring.stage, ring.parity);
    const std::uint32_t at = stages + ring.stage * tiles::kStageBytes;
    if (rest % 16 != 0) {
      clear_rows<1>(at + group * tiles::kBox, rest, parts * 16);
      clear_rows<4>(at + tiles::kABytes, rest, parts * 16);
      hopper::written_for_products();
      hopper::group_sync(1 + group);
    }
    std::uint64_t a = hopper::operand<kADown>(at + group * tiles::kBox, tiles::kBox),
                  b = hopper::operand<kBDown>(at + tiles::kABytes, tiles::kBox);
#pragma unroll 1
    for (int i = 0; i < parts; ++i) {
      hopper::products_begin();
      hopper::product<T, kADown, kBDown>(d, a, b, whole > 0 || i > 0);
      hopper::products_commit();
      a += hopper::kOperandStep<kADown>;
      b += hopper::kOperandStep<kBDown>;
    }
    hopper::products_wait<0>();
    release(ring.stage);
    ring.next();
  }
  meanwhile();
  hopper::products_wait<0>();
  if (before >= 0) release(before);
  hopper::results_are_there(d);
}

template <Gemm::Form kForm, class T, class C>
__global__ void __cluster_dims__(2) __launch_bounds__(tiles::kThreads, 1)
    grouped_tiles(const __grid_constant__ GroupedTiles g, const __grid_constant__ CUtensorMap a_map,
                  const __grid_constant__ CUtensorMap b_map) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte shared[];
  const std::uint32_t stages = hopper::shared_address(shared);
  const std::uint32_t full = stages + tiles::kStages * tiles::kStageBytes, empty = full + 8 * tiles::kStages;
  const int block = static_cast<int>(hopper::cluster_rank()), role = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < tiles::kStages; ++i) {
      hopper::barrier_init(full + 8 * i, 1);
      hopper::barrier_init(empty + 8 * i, 2 * 4 * tiles::kGroups);  // warps of both blocks
    }
    hopper::barriers_are_made();
    hopper::prefetch_map(&a_map);
    hopper::prefetch_map(&b_map);
  }
  hopper::cluster_sync();
  TileList list(g, block);
  Tile t;
  Ring ring;
  const int stride = static_cast<int>(gridDim.x / 2);
  if (role == 0) {
    hopper::fewer_registers<40>();
    if (threadIdx.x < 32) {
      for (int next = static_cast<int>(blockIdx.x / 2); list.find(next, t); next += stride) {
        if (threadIdx.x == 0) {
          for (int k = 0; k < t.depth; k += tiles::kDepth, ring.next()) {
            hopper::barrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
            hopper::barrier_expect(full + 8 * ring.stage, tiles::kStageBytes);
            Operands<kForm>::bring(&a_map, &b_map, t, k, block, stages + ring.stage * tiles::kStageBytes,
                                   full + 8 * ring.stage);
          }
        }
        __syncwarp();
      }
    }
  } else {
    hopper::more_registers<232>();
    constexpr bool kGradient = kForm == Gemm::Form::kTN;
    const int group = role - 1;
    const std::uint32_t way_out = empty + 8 * tiles::kStages + (threadIdx.x / 32 - 4) * tiles::kWayOut;
    int next = static_cast<int>(blockIdx.x / 2);
    bool has = list.find(next, t);
    while (has) {
      const int rows = min(t.rows - t.row - 64 * group, 64), columns = g.columns - t.column;
      const bool any = rows > 0 && columns > 0;
      Tile following;
      float d[128] = {};
      multiply<kForm, T>(d, t, group, any, stages, full, empty, ring, [&] {
        next += stride;
        has = list.find(next, following);
      });
      if (any) {
        const Index first = (kGradient ? Index{t.expert} * g.rows : t.first) + t.row + 64 * group;
        C* c = static_cast<C*>(g.c) + first * g.c_ld + t.column;
        if (!kGradient || t.depth > 0) {
          store_tile(d, c, g.c_ld, rows, columns, g.beta, way_out);
        } else if (g.beta == 0) {
          clear_tile(c, g.c_ld, rows, columns);
        }
      }
      t = following;
    }
    if (!kGradient) clear_rest<C>(g);
  }
  __syncwarp();
  hopper::cluster_sync();  // nothing more comes from the other block, nor goes there
#else
  __trap();
#endif
}

// Operands as the copy engine sees them: boxes of 64 elements of `rows` rows of x [.., rows, columns].
CUtensorMap box_map(const Lane& lane, const Tensor& x, Index rows, int box_rows);

template <Gemm::Form kForm, class T, class C>
void launch_grouped_tiles(Lane& lane, const GroupedGemm& g) {
  constexpr bool kGradient = kForm == Gemm::Form::kTN;
  const GroupedTiles args{g.offsets.data<std::int32_t>(),
                          g.c.raw(),
                          g.c.ld(),
                          g.c.dim(0),
                          static_cast<int>(g.experts()),
                          kGradient ? static_cast<int>(g.out()) : 0,
                          static_cast<int>(kForm == Gemm::Form::kNT ? g.out() : g.in()),
                          kGradient                  ? 0
                          : kForm == Gemm::Form::kNT ? static_cast<int>(g.in())
                                                     : static_cast<int>(g.out()),
                          g.beta};
  const auto kernel = grouped_tiles<kForm, T, C>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, tiles::kSharedBytes),
        "use shared memory for grouped_gemm");
  const unsigned blocks = static_cast<unsigned>(tools(lane).multiprocessors) / 2 * 2;
  kernel<<<blocks, tiles::kThreads, tiles::kSharedBytes, stream(lane)>>>(
      args, box_map(lane, g.a, g.a.dim(0), 64),
      box_map(lane, g.b, kGradient ? g.b.dim(0) : g.out(), kForm == Gemm::Form::kNT ? 128 : 64));
  launched("run grouped_gemm");
}

// One function for each form, in a file of its own. T: of the operands.
void grouped_tiles_nt(Lane& lane, const GroupedGemm& g);
void grouped_tiles_nn(Lane& lane, const GroupedGemm& g);
void grouped_tiles_tn(Lane& lane, const GroupedGemm& g);

}  // namespace weft::ops::cuda
