#include "nn/recompute.hpp"

#include <utility>

namespace weft::nn {
namespace {

// While it lives, the microbatch saves into `other`, which holds the microbatch's own stack meanwhile.
class Exchange {
 public:
  Exchange(Microbatch& mb, SavedStack& other) : mb_(mb), other_(other) { std::swap(mb_.saved, other_); }
  ~Exchange() { std::swap(mb_.saved, other_); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

 private:
  Microbatch& mb_;
  SavedStack& other_;
};

// A pass of which nothing is kept.
template <class Run>
Tensor forget(Microbatch& mb, Run&& run) {
  SavedStack none(false);
  const Exchange exchange(mb, none);
  return run();
}

// The second pass and its backward, on a stack of their own.
template <class Run, class Backward>
auto again(Microbatch& mb, Run&& run, Backward&& backward) {
  SavedStack fresh;
  const Exchange exchange(mb, fresh);
  run();  // its output was used when it was first made
  return backward();
}

}  // namespace

Tensor RecomputedLayers::run(Lane& lane, const Tensor& x, Microbatch& mb) const {
  Tensor y = x;
  for (const std::unique_ptr<Layer>& layer : layers_) y = layer->forward(lane, y, mb);
  return y;
}

Tensor RecomputedLayers::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  Tensor y = forget(mb, [&] { return run(lane, x, mb); });
  mb.saved.push(Saved{x});
  return y;
}

Tensor RecomputedLayers::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  Tensor x = mb.saved.pop<Saved>().x;
  const auto forward_again = [&] {
    run(lane, x, mb);
    x = Tensor();  // from here on the layers hold what they need
  };
  return again(mb, forward_again, [&] {
    Tensor dx = dy;
    for (std::size_t i = layers_.size(); i-- > 0;) dx = layers_[i]->backward(lane, dx, mb);
    return dx;
  });
}

Tensor RecomputedCoreAttention::forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                                        Microbatch& mb) const {
  Tensor out = forget(mb, [&] { return core_->forward(lane, q, k, v, mb); });
  mb.saved.push(Saved{q, k, v});
  return out;
}

void RecomputedCoreAttention::backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk,
                                       const Tensor& dv, Microbatch& mb) const {
  const Saved saved = mb.saved.pop<Saved>();
  again(
      mb, [&] { core_->forward(lane, saved.q, saved.k, saved.v, mb); },
      [&] { core_->backward(lane, dout, dq, dk, dv, mb); });
}

Tensor RecomputedSublayer::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  Tensor y = forget(mb, [&] { return inner_->forward(lane, x, mb); });
  mb.saved.push(Saved{x});
  return y;
}

Tensor RecomputedSublayer::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  const Tensor x = mb.saved.pop<Saved>().x;
  return again(
      mb, [&] { inner_->forward(lane, x, mb); }, [&] { return inner_->backward(lane, dy, mb); });
}

Tensor RecomputedNorm::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  Saved saved{x, SavedStack()};
  Tensor y;
  {
    const Exchange exchange(mb, saved.of_norm);
    y = norm_->forward(lane, x, mb);
  }
  mb.saved.push(std::move(saved));
  return y;
}

Tensor RecomputedNorm::output_again(Lane& lane, Microbatch& mb) const {
  Saved saved = mb.saved.pop<Saved>();
  Tensor y = forget(mb, [&] { return norm_->forward(lane, saved.x, mb); });
  mb.saved.push(std::move(saved));
  return y;
}

Tensor RecomputedNorm::backward(Lane& lane, const Tensor& dy, const Tensor& dresidual, Microbatch& mb) const {
  Saved saved = mb.saved.pop<Saved>();
  saved.x = Tensor();
  const Exchange exchange(mb, saved.of_norm);
  return norm_->backward(lane, dy, dresidual, mb);
}

Tensor RecomputedInputLinear::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  return forget(mb, [&] { return linear_->forward(lane, x, mb); });
}

Async<Tensor> RecomputedInputLinear::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  return linear_->backward_of(lane, dy, norm_.output_again(lane, mb), mb);
}

}  // namespace weft::nn
