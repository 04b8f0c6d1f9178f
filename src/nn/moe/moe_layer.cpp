#include "nn/moe/moe_layer.hpp"

#include "ops/elementwise.hpp"

namespace weft::nn {
Tensor MoeLayer::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  const Tensor own = parts_.share->take(lane, x);
  const Router::Decision decision = parts_.router->forward(lane, own, mb);
  const auto plan = parts_.exchange->plan(lane, decision.routing.experts, parts_.router->capacity(mb));
  Moved tokens = parts_.exchange->spread(lane, *plan, own);
  Moved weights = parts_.exchange->spread_values(lane, *plan, decision.routing.probs);
  Tensor a;
  if (parts_.shared != nullptr) a = parts_.shared->into(lane, x, mb);
  Moved back = [&] {
    const Tensor at_experts = tokens.wait(lane), scale = weights.wait(lane);
    const Tensor y = parts_.experts->forward(lane, at_experts, scale, plan->offsets, mb);
    return parts_.exchange->collect(lane, *plan, y);
  }();
  Tensor shared;
  if (parts_.shared != nullptr) shared = parts_.shared->out_of(lane, a, mb);
  decision.sums->wait(lane);
  const Tensor out = parts_.share->give(lane, back.wait(lane), x.shape());
  if (shared.defined()) ops::add_in_place(lane, out, shared);
  mb.saved.push(Saved{plan});
  return out;
}

Tensor MoeLayer::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  const auto plan = mb.saved.pop<Saved>().plan;
  Moved gradients = parts_.exchange->spread(lane, *plan, parts_.share->take(lane, dy));
  Tensor da;
  if (parts_.shared != nullptr) da = parts_.shared->out_of_backward(lane, dy, mb);
  GroupedExperts::Gradients at_experts = parts_.experts->backward(lane, gradients.wait(lane), mb);
  Moved back = parts_.exchange->collect(lane, *plan, at_experts.dx);
  Moved weights = parts_.exchange->collect_values(lane, *plan, at_experts.dweights);
  at_experts = {};
  mb.later.reached(lane, DrainPoint::kLinear);
  Tensor dshared;
  if (parts_.shared != nullptr) dshared = parts_.shared->into_backward(lane, da, mb);
  const Tensor dx = back.wait(lane);
  ops::add_in_place(lane, dx, parts_.router->backward(lane, weights.wait(lane), mb));
  mb.later.reached(lane, DrainPoint::kLinear);
  const Tensor out = parts_.share->give(lane, dx, dy.shape());
  if (dshared.defined()) ops::add_in_place(lane, out, dshared);
  return out;
}

}  // namespace weft::nn
