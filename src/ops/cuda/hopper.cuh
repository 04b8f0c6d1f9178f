// What Hopper's matrix units and copy engine are told, in PTX: barriers in shared memory, tiles brought by
// the copy engine (to one block of a cluster or to all), products of a group of four warps.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace weft::ops::cuda::hopper {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all blocks of the cluster.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// --- barriers: `barrier` is an address in shared memory
__device__ inline void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void barriers_are_made() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// At the same barrier of a block of the cluster.
__device__ inline void barrier_arrive(std::uint32_t barrier, std::uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(block)
      : "memory");
}

// --- the copy engine: a box of a tensor map to shared memory `to`; `barrier` counts its bytes
__device__ inline void load_box(std::uint32_t to, const void* map, std::uint32_t barrier, int x, int y,
                                int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// The same to the same place of both blocks of a cluster of two, and counted there.
__device__ inline void load_box_to_both(std::uint32_t to, const void* map, std::uint32_t barrier, int x,
                                        int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(static_cast<std::uint16_t>(3))
      : "memory");
}
__device__ inline void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// What threads have written to shared memory may be read by matrix units after this and a barrier.
__device__ inline void written_for_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Four matrices of 8 × 8 16-bit elements, as products leave them in a warp's registers, to shared memory:
// lane l says where row l % 8 of matrix l / 8 goes.
__device__ inline void store_matrices(std::uint32_t to, const std::uint32_t (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]),
               "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}
__device__ inline uint4 load_shared(std::uint32_t from) {
  uint4 w;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "r"(from)
               : "memory");
  return w;
}

// --- products of a group of four warps
template <int kRegisters>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
__device__ inline void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed groups are under way.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The threads of one group of four warps; `which` is the number of a barrier of the block, not 0.
__device__ inline void group_sync(int which) {
  asm volatile("bar.sync %0, 128;" ::"r"(which) : "memory");
}

// Where an operand lies: tiles of 64 elements (128 bytes) a row, in the copy engine's swizzle of 128 bytes.
// Sums run along the rows of a tile, or down them where kDown; then a wide operand is several tiles, `tile`
// bytes apart.
template <bool kDown>
__device__ inline std::uint64_t operand(std::uint32_t address, std::uint32_t tile) {
  const std::uint64_t leading = kDown ? tile >> 4 : 1;
  return std::uint64_t{(address & 0x3ffff) >> 4} | leading << 16 | std::uint64_t{1024 >> 4} << 32 |
         std::uint64_t{1} << 62;
}
// To the next 16 elements of the sum.
template <bool kDown>
constexpr std::uint64_t kOperandStep = kDown ? (16 * 128) >> 4 : 32 >> 4;

#define WEFT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WEFT_D16(i) WEFT_D4(i), WEFT_D4(i + 4), WEFT_D4(i + 8), WEFT_D4(i + 12)
#define WEFT_D128                                                                                  \
  WEFT_D16(0), WEFT_D16(16), WEFT_D16(32), WEFT_D16(48), WEFT_D16(64), WEFT_D16(80), WEFT_D16(96), \
      WEFT_D16(112)
#define WEFT_PRODUCT(TYPE)                                                                                   \
  asm volatile(                                                                                              \
      "{\n"                                                                                                  \
      ".reg .pred add;\n"                                                                                    \
      "setp.ne.b32 add, %130, 0;\n"                                                                          \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE                                           \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "    \
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, " \
      "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, " \
      "%61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
      "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "      \
      "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "     \
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "                            \
      "%128, %129, add, 1, 1, %131, %132;\n"                                                                 \
      "}"                                                                                                    \
      : WEFT_D128                                                                                            \
      : "l"(a), "l"(b), "r"(add), "n"(kADown ? 1 : 0), "n"(kBDown ? 1 : 0))

// d [64, 256] = (add ? d : 0) + a [64, 16] · b [16, 256], begun; thread t has of rows 16 (t / 32) + t % 32 /
// 4 and 8 further down the columns 8 j + 2 (t % 4) and the next: d[4 j], d[4 j + 1] and d[4 j + 2], d[4 j +
// 3].
template <class T, bool kADown, bool kBDown>
__device__ inline void product(float (&d)[128], std::uint64_t a, std::uint64_t b, int add) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    WEFT_PRODUCT("bf16");
  } else {
    static_assert(std::is_same_v<T, __half>);
    WEFT_PRODUCT("f16");
  }
}
#undef WEFT_PRODUCT
#undef WEFT_D128
#undef WEFT_D16
#undef WEFT_D4

// The results are there, for the compiler too.
__device__ inline void results_are_there(float (&d)[128]) {
#pragma unroll
  for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace weft::ops::cuda::hopper
