#include <cmath>

#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

// Small enough to round the new master weights to the weight's type while they are in L1.
constexpr Index kBlock = 1024;

// Calls update(begin, end) on blocks, and rounds master to weight after each. `weight` may be master itself.
template <class A, class Update>
void for_blocks(Lane& lane, const Tensor& master, const Tensor& weight, const Update& update) {
  visit_floating(weight.dtype(), [&]<class W>(W) {
    const A* p = master.data<A>();
    W* w = weight.data<W>();
    const bool same = static_cast<const void*>(p) == static_cast<const void*>(w);
    lane.workers.parallel_for(master.elems(), kSpan, [&](Index begin, Index end) {
      for (Index at = begin; at < end; at += kBlock) {
        const Index block_end = std::min(end, at + kBlock);
        update(at, block_end);
        if (!same) convert(p + at, w + at, block_end - at);
      }
    });
  });
}

template <class A>
void run_adamw(Lane& lane, const AdamWStep& s, const Tensor& master, const Tensor& exp_avg,
               const Tensor& exp_avg_sq, const Tensor& grad, const Tensor& weight) {
  const double t = static_cast<double>(s.t);
  const auto decay = static_cast<A>(1 - s.lr * s.weight_decay);
  const auto b1 = static_cast<A>(s.beta1), c1 = static_cast<A>(1 - s.beta1);
  const auto b2 = static_cast<A>(s.beta2), c2 = static_cast<A>(1 - s.beta2);
  const auto step = static_cast<A>(s.lr / (1 - std::pow(s.beta1, t)));
  const auto root = static_cast<A>(1 / std::sqrt(1 - std::pow(s.beta2, t)));
  const auto eps = static_cast<A>(s.eps), scale = static_cast<A>(s.gradient_scale);
  for_blocks<A>(lane, master, weight, [&](Index begin, Index end) {
    A* __restrict p = master.data<A>();
    A* __restrict m = exp_avg.data<A>();
    A* __restrict v = exp_avg_sq.data<A>();
    const A* __restrict gradient = grad.data<A>();
    for (Index i = begin; i < end; ++i) {
      const A g = scale * gradient[i];
      const A first = b1 * m[i] + c1 * g;
      const A second = b2 * v[i] + c2 * g * g;
      m[i] = first;
      v[i] = second;
      // 0 / 0 (eps 0 and never a gradient: a row that pads the vocabulary) is no update.
      const A denominator = std::sqrt(second) * root + eps;
      p[i] = p[i] * decay - step * first / (denominator == A{0} ? A{1} : denominator);
    }
  });
}

template <class A>
void run_sgd(Lane& lane, const SgdStep& s, const Tensor& master, const Tensor& buffer, const Tensor& grad,
             const Tensor& weight) {
  const auto lr = static_cast<A>(s.lr), momentum = static_cast<A>(s.momentum);
  const auto decay = static_cast<A>(s.weight_decay), scale = static_cast<A>(s.gradient_scale);
  for_blocks<A>(lane, master, weight, [&](Index begin, Index end) {
    A* __restrict p = master.data<A>();
    const A* __restrict gradient = grad.data<A>();
    if (!buffer.defined()) {
      for (Index i = begin; i < end; ++i) p[i] -= lr * (scale * gradient[i] + decay * p[i]);
      return;
    }
    A* __restrict velocity = buffer.data<A>();
    if (s.first) {  // the buffer may hold anything, so it is not even multiplied by 0
      for (Index i = begin; i < end; ++i) velocity[i] = scale * gradient[i] + decay * p[i];
    } else {
      for (Index i = begin; i < end; ++i) {
        velocity[i] = momentum * velocity[i] + (scale * gradient[i] + decay * p[i]);
      }
    }
    for (Index i = begin; i < end; ++i) p[i] -= lr * velocity[i];
  });
}

// Calls update(owned, full, decays) for each piece: functions that cut the piece out of a flat tensor.
template <class Update>
void for_pieces(const FlatPieces& pieces, const Update& update) {
  for (const FlatPiece& p : pieces.list()) {
    const auto owned = [&](const Tensor& x) { return x.defined() ? x.slice(p.owned, p.elems) : x; };
    const auto full = [&](const Tensor& x) { return x.slice(p.offset, p.elems); };
    update(owned, full, p.tag != 0);
  }
}

}  // namespace

void adamw(Lane& lane, const AdamWStep& step, const FlatPieces& pieces, const AdamWTensors& t) {
  for_pieces(pieces, [&](const auto& owned, const auto& full, bool decays) {
    AdamWStep s = step;
    if (!decays) s.weight_decay = 0;
    const auto run = t.master.dtype() == DType::kF64 ? run_adamw<double> : run_adamw<float>;
    run(lane, s, owned(t.master), owned(t.exp_avg), owned(t.exp_avg_sq), full(t.gradient), full(t.weight));
  });
}

void sgd(Lane& lane, const SgdStep& step, const FlatPieces& pieces, const SgdTensors& t) {
  for_pieces(pieces, [&](const auto& owned, const auto& full, bool decays) {
    SgdStep s = step;
    if (!decays) s.weight_decay = 0;
    const auto run = t.master.dtype() == DType::kF64 ? run_sgd<double> : run_sgd<float>;
    run(lane, s, owned(t.master), owned(t.buffer), full(t.gradient), full(t.weight));
  });
}

}  // namespace weft::ops::cpu
