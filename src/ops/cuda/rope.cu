#include <limits>

#include "ops/cuda/spans.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

// A thread turns the same pairs of up to kHeads heads, so that it reads their cosines and sines once. Its
// number in the row, `unit`, counts vectors of pairs, then groups of heads: thread group g takes the heads g,
// g + groups, ...
template <class T, bool kInterleaved>
struct Rotate {
  static constexpr int kUnroll = 1, kHeads = 4;
  T* x;
  Index ld;
  const Acc<T>*cos, *sin;
  Index cos_ld, sin_ld, table_rows;
  const std::int32_t* positions;
  Index batch;
  int heads, groups, head_dim, pairs;
  Acc<T> sign;

  template <int N>
  __device__ Nothing load(Index, Index, Index) const {
    return {};
  }
  template <int N>
  __device__ void run(Index t, Index b, Index unit, Nothing) const {
    using A = Acc<T>;
    const int vectors = pairs / N, which = static_cast<int>(unit / N);
    const int group = which / vectors, i = (which - group * vectors) * N;
    const Index row = t * batch + b;
    const Index position = positions != nullptr ? positions[row] : t;
    const bool known = position >= 0 && position < table_rows;
    Vec<A, N> c, s;
    if (known) {
      c = cuda::load<N>(cos + position * cos_ld + i);
      s = cuda::load<N>(sin + position * sin_ld + i);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) c.v[k] = s.v[k] = std::numeric_limits<A>::quiet_NaN();
    }
    // Interleaved: the two halves of 2 N elements; else N first members and N second ones.
    const Index second = kInterleaved ? N : pairs;
    T* p = x + row * ld + static_cast<Index>(group) * head_dim + (kInterleaved ? 2 * i : i);
    const Index step = static_cast<Index>(groups) * head_dim;
    Vec<T, N> u[kHeads], v[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (group + h * groups >= heads) continue;
      u[h] = cuda::load<N>(p + h * step);
      v[h] = cuda::load<N>(p + h * step + second);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (group + h * groups >= heads) continue;
      Vec<T, N>&first = u[h], &last = v[h];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        // Of interleaved pairs, number k lies at 2 k and 2 k + 1 of the two vectors laid end to end.
        T& to_a = !kInterleaved ? first.v[k] : 2 * k < N ? first.v[2 * k % N] : last.v[2 * k % N];
        T& to_b = !kInterleaved   ? last.v[k]
                  : 2 * k + 1 < N ? first.v[(2 * k + 1) % N]
                                  : last.v[(2 * k + 1) % N];
        const A a = to_acc(to_a), z = to_acc(to_b), turn = sign * s.v[k];
        // Written with fma, so that every path through this code contracts the same products.
        to_a = from_acc<T>(fma(a, c.v[k], -(z * turn)));
        to_b = from_acc<T>(fma(z, c.v[k], a * turn));
      }
      store(p + h * step, first);
      store(p + h * step + second, last);
    }
  }
};

}  // namespace

void rope_in_place(Lane& lane, const Tensor& x, const RopeTable& table, const Tensor& positions, int head_dim,
                   bool inverse) {
  const Index pairs = table.cos.columns(), heads = x.columns() / head_dim;
  if (pairs == 0) return;
  visit_floating(x.dtype(), [&]<class T>(T) {
    const auto with = [&]<bool kInterleaved>() {
      using Op = Rotate<T, kInterleaved>;
      constexpr int N = sizeof(T) == 2 ? (kInterleaved ? 4 : 8) : 16 / sizeof(T);
      const int groups = static_cast<int>((heads + Op::kHeads - 1) / Op::kHeads);
      const Op op{data<T>(x),
                  x.ld(),
                  data<Acc<T>>(table.cos),
                  data<Acc<T>>(table.sin),
                  table.cos.ld(),
                  table.sin.ld(),
                  table.cos.rows(),
                  positions.defined() ? data<std::int32_t>(positions) : nullptr,
                  x.dim(1),
                  static_cast<int>(heads),
                  groups,
                  head_dim,
                  static_cast<int>(pairs),
                  inverse ? Acc<T>{-1} : Acc<T>{1}};
      const bool vectors =
          vectorizable(x, N) && head_dim % N == 0 && vectorizable(table.cos, N) && vectorizable(table.sin, N);
      for_tokens<N>(stream(lane), "run rope", op, x.dim(0), x.dim(1), groups * pairs, vectors);
    };
    table.interleaved ? with.template operator()<true>() : with.template operator()<false>();
  });
}

}  // namespace weft::ops::cuda
