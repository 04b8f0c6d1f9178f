#include <cmath>

#include "ops/cuda/kernel.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kThreads = 256;

// One block updates one chunk of FlatPieces. Update is a struct of numbers with
//   static constexpr bool kFirst, kSecond          whether there is state beside the master
//   void operator()(A& p, A& m, A& v, A g, bool decays)
template <class A, class W>
struct Memory {
  A *master, *first, *second;  // of chunk.owned
  const A* gradient;           // of chunk.offset
  W* weight;                   // of chunk.offset
};

template <int N, int kUnroll, class A, class W, class Update>
__device__ void update_span(const Memory<A, W>& at, int elems, const Update& update, bool decays) {
  const bool same = static_cast<const void*>(at.master) == static_cast<const void*>(at.weight);
  const int vectors = elems / N;
  for (int i = threadIdx.x; i < vectors; i += kUnroll * kThreads) {
    Vec<A, N> p[kUnroll], m[kUnroll], v[kUnroll], g[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int j = (i + u * kThreads) * N;
      if (i + u * kThreads >= vectors) continue;
      p[u] = load<N>(at.master + j);
      g[u] = load<N>(at.gradient + j);
      if (Update::kFirst && update.reads_first()) m[u] = load<N>(at.first + j);
      if (Update::kSecond) v[u] = load<N>(at.second + j);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int j = (i + u * kThreads) * N;
      if (i + u * kThreads >= vectors) continue;
      Vec<W, N> w;
#pragma unroll
      for (int e = 0; e < N; ++e) {
        update(p[u].v[e], m[u].v[e], v[u].v[e], g[u].v[e], decays);
        w.v[e] = from_acc<W>(static_cast<Acc<W>>(p[u].v[e]));
      }
      store(at.master + j, p[u]);
      if (Update::kFirst) store(at.first + j, m[u]);
      if (Update::kSecond) store(at.second + j, v[u]);
      if (!same) store(at.weight + j, w);
    }
  }
}

template <class T>
__device__ bool aligned_to(const T* p, int n) {
  return reinterpret_cast<std::uintptr_t>(p) % (n * sizeof(T)) == 0;
}

template <class A, class W, class Update>
__global__ void __launch_bounds__(kThreads)
    update_chunks(const Memory<A, W> all, const std::int64_t* chunks, const Update update) {
  constexpr int N = 16 / sizeof(A);
  const std::int64_t* chunk = chunks + 4 * static_cast<Index>(blockIdx.x);
  const Index owned = chunk[0], offset = chunk[1];
  const auto elems = static_cast<int>(chunk[2]);
  const bool decays = chunk[3] != 0;
  const auto from = [&](int skip) {
    const Index o = owned + skip, f = offset + skip;
    return Memory<A, W>{all.master + o, Update::kFirst ? all.first + o : nullptr,
                        Update::kSecond ? all.second + o : nullptr, all.gradient + f, all.weight + f};
  };
  const Memory<A, W> at = from(0);
  const bool vectors = aligned_to(at.master, N) && aligned_to(at.first, N) && aligned_to(at.second, N) &&
                       aligned_to(at.gradient, N) && aligned_to(at.weight, N);
  const int whole = vectors ? elems / N * N : 0;
  update_span<N, 2>(at, whole, update, decays);
  update_span<1, 4>(from(whole), elems - whole, update, decays);
}

template <class A>
struct AdamW {
  static constexpr bool kFirst = true, kSecond = true;
  A decay, b1, c1, b2, c2, step, root, eps, scale;

  AdamW(const AdamWStep& s)
      : decay(static_cast<A>(1 - s.lr * s.weight_decay)),
        b1(static_cast<A>(s.beta1)),
        c1(static_cast<A>(1 - s.beta1)),
        b2(static_cast<A>(s.beta2)),
        c2(static_cast<A>(1 - s.beta2)),
        step(static_cast<A>(s.lr / (1 - std::pow(s.beta1, static_cast<double>(s.t))))),
        root(static_cast<A>(1 / std::sqrt(1 - std::pow(s.beta2, static_cast<double>(s.t))))),
        eps(static_cast<A>(s.eps)),
        scale(static_cast<A>(s.gradient_scale)) {}

  __device__ bool reads_first() const { return true; }
  __device__ void operator()(A& p, A& m, A& v, A gradient, bool decays) const {
    const A g = scale * gradient;
    m = b1 * m + c1 * g;
    v = b2 * v + c2 * g * g;
    // 0 / 0 (eps 0 and never a gradient: a row that pads the vocabulary) is no update.
    const A denominator = sqrt(v) * root + eps;
    p = p * (decays ? decay : A{1}) - step * m / (denominator == A{0} ? A{1} : denominator);
  }
};

template <class A, bool kMomentum>
struct Sgd {
  static constexpr bool kFirst = kMomentum, kSecond = false;
  A lr, momentum, decay, scale;
  bool first;

  Sgd(const SgdStep& s)
      : lr(static_cast<A>(s.lr)),
        momentum(static_cast<A>(s.momentum)),
        decay(static_cast<A>(s.weight_decay)),
        scale(static_cast<A>(s.gradient_scale)),
        first(s.first) {}

  // At first the buffer may hold anything, so it is not even multiplied by 0.
  __device__ bool reads_first() const { return !first; }
  __device__ void operator()(A& p, A& velocity, A&, A gradient, bool decays) const {
    const A g = scale * gradient + (decays ? decay : A{0}) * p;
    if constexpr (kMomentum) {
      velocity = first ? g : momentum * velocity + g;
      p -= lr * velocity;
    } else {
      p -= lr * g;
    }
  }
};

template <class A, class Update>
void run(Lane& lane, const Update& update, const FlatPieces& pieces, const Tensor& master,
         const Tensor& first, const Tensor& second, const Tensor& gradient, const Tensor& weight,
         const char* what) {
  const Index count = pieces.chunks().dim(0);
  if (count == 0) return;
  visit_floating(weight.dtype(), [&]<class W>(W) {
    const Memory<A, W> memory{data<A>(master), data<A>(first), data<A>(second), data<A>(gradient),
                              data<W>(weight)};
    update_chunks<<<static_cast<unsigned>(count), kThreads, 0, stream(lane)>>>(
        memory, data<std::int64_t>(pieces.chunks()), update);
  });
  launched(what);
}

// Calls body(A{}) with the master's type.
template <class Body>
void visit_master(const Tensor& master, const Body& body) {
  master.dtype() == DType::kF64 ? body(double{}) : body(float{});
}

}  // namespace

void adamw(Lane& lane, const AdamWStep& step, const FlatPieces& pieces, const AdamWTensors& t) {
  visit_master(t.master, [&]<class A>(A) {
    run<A>(lane, AdamW<A>(step), pieces, t.master, t.exp_avg, t.exp_avg_sq, t.gradient, t.weight,
           "run adamw");
  });
}

void sgd(Lane& lane, const SgdStep& step, const FlatPieces& pieces, const SgdTensors& t) {
  visit_master(t.master, [&]<class A>(A) {
    const auto with = [&](const auto& update) {
      run<A>(lane, update, pieces, t.master, t.buffer, {}, t.gradient, t.weight, "run sgd");
    };
    t.buffer.defined() ? with(Sgd<A, true>(step)) : with(Sgd<A, false>(step));
  });
}

}  // namespace weft::ops::cuda
