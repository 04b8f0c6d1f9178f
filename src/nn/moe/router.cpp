#include "nn/moe/router.hpp"

#include <cmath>

#include "ops/elementwise.hpp"
#include "ops/gemm.hpp"

namespace weft::nn {
namespace {

Tensor as(Lane& lane, const Tensor& x, DType dtype, const char* what) {
  return x.dtype() == dtype ? x : ops::cast(lane, x, dtype, what);
}

}  // namespace

std::int64_t RouterShape::capacity(std::int64_t tokens) const {
  if (capacity_factor == 0) return 0;
  const double even = static_cast<double>(tokens * options.topk) / static_cast<double>(experts);
  return static_cast<std::int64_t>(std::ceil(even * capacity_factor));
}

void Router::Sums::start(Lane& lane, Communicator& group, const Tensor& own) {
  moving_.push_back(group.all_reduce(lane, own));
}

void Router::Sums::wait(Lane& lane) {
  for (Async<Tensor>& sum : moving_) arrived_.push_back(sum.wait(lane));
  moving_.clear();
}

std::vector<Router::Loss> Router::losses() const {
  std::vector<Loss> list;
  if (shape_.aux != 0) list.push_back({false, shape_.aux, 0});
  if (shape_.sequence_aux != 0) list.push_back({true, shape_.sequence_aux, 0});
  if (shape_.z == 0) return list;
  if (list.empty()) list.push_back({false, 0, 0});
  list.front().z = shape_.z;
  return list;
}

Router::Decision Router::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  const Tensor own = as(lane, x, shape_.dtype, "router input");
  const Tensor logits = ops::gemm_nt(lane, own, as(lane, weight_.weight(), shape_.dtype, "router weight"));
  const Tensor counted = mb.batch.counted.defined() ? share_.take(lane, mb.batch.counted) : Tensor();
  const Tensor bias = bias_ == nullptr ? Tensor() : as(lane, bias_->weight(), shape_.dtype, "router bias");
  const ops::Routing chosen = ops::route(lane, logits, bias, counted, shape_.options);
  const ops::Routing kept = within_capacity(lane, chosen, mb);
  Decision decision{{as(lane, kept.probs, accumulator_of(x.dtype()), "weights of experts"), kept.experts},
                    std::make_shared<Sums>()};
  if (!mb.saved.keeps()) return decision;
  for (const Loss& loss : losses()) {
    const std::int64_t groups = loss.by_sequence ? mb.batch.tokens.dim(0) : 1;
    decision.sums->start(lane, microbatch_, ops::balance_sums(lane, logits, counted, groups, shape_.options));
  }
  mb.saved.push(Saved{kept_input(own, weight_), logits, counted, chosen, kept, decision.sums});
  return decision;
}

// Which choices an expert takes depends on all tokens of the microbatch: every rank decides for all.
ops::Routing Router::within_capacity(Lane& lane, const ops::Routing& routing, const Microbatch& mb) const {
  if (shape_.capacity_factor == 0) return routing;
  const Tensor places = share_.take(lane, mb.batch.places);
  const auto gathered = [&](const Tensor& own) {
    const Tensor all = microbatch_.all_gather(lane, own).wait(lane);
    if (all.raw() != own.raw()) return all;
    Tensor copy = lane.alloc(own.dtype(), own.shape(), "routing");
    ops::copy(lane, own, copy);
    return copy;
  };
  const ops::Routing all{gathered(routing.probs), gathered(routing.experts)};
  ops::drop_over_capacity(lane, all, microbatch_.all_gather(lane, places).wait(lane), shape_.experts,
                          capacity(mb), shape_.drop_by_position);
  const std::int64_t n = routing.probs.dim(0), first = n * microbatch_.rank();
  return {all.probs.slice(first, n), all.experts.slice(first, n)};
}

void Router::add_statistics(Lane& lane, const Saved& saved, double weight) const {
  if (!statistics_) return;
  ops::count_experts(lane, saved.chosen.experts, statistics_->chosen());
  ops::count_experts(lane, saved.kept.experts, statistics_->kept());
  // All ranks of the microbatch know its losses: each adds its share.
  weight /= microbatch_.size();
  bool first = true;
  for (const Tensor& sums : saved.sums->arrived()) {
    const Tensor losses = statistics_->losses();
    if (first) {
      ops::balance_losses(lane, sums, shape_.options, weight, losses);
    } else {  // the z-loss has been counted
      const Tensor both = lane.alloc(DType::kF64, {2}, "router losses");
      ops::fill(lane, both, 0);
      ops::balance_losses(lane, sums, shape_.options, weight, both);
      ops::add_in_place(lane, losses.slice(0, 1), both.slice(0, 1));
    }
    first = false;
  }
}

Tensor Router::backward(Lane& lane, const Tensor& dprobs, Microbatch& mb) const {
  Saved saved = mb.saved.pop<Saved>();
  // The loss of a microbatch counts as its target tokens do.
  const double weight = mb.loss_scale * static_cast<double>(mb.target_tokens);
  add_statistics(lane, saved, weight);
  const Tensor dlogits = ops::route_backward(lane, as(lane, dprobs, shape_.dtype, "router gradient"),
                                             saved.logits, saved.chosen, shape_.options);
  const std::vector<Loss> list = losses();
  for (std::size_t i = 0; i < list.size(); ++i) {
    ops::balance_backward(lane, saved.logits, saved.counted, saved.sums->arrived()[i], shape_.options,
                          {.aux = weight * list[i].aux, .z = weight * list[i].z}, dlogits);
  }
  const Tensor dx = ops::gemm_nn(lane, dlogits, as(lane, weight_.weight(), shape_.dtype, "router weight"));
  if (weight_.trains()) mb.later.push(*this, Pending{dlogits, std::move(saved.x)});
  return as(lane, dx, weight_.weight().dtype(), "router gradient");
}

void Router::weight_grad(Lane& lane, Pending pending) const {
  weight_.contribute([&](const Tensor& gradient, float beta) {
    if (gradient.dtype() == shape_.dtype) {
      return ops::gemm_tn_accumulate(lane, pending.dlogits, pending.x, gradient, beta);
    }
    const Tensor sum = lane.alloc(shape_.dtype, gradient.shape(), "router gradient");
    ops::gemm_tn_accumulate(lane, pending.dlogits, pending.x, sum, 0);
    if (beta == 0) ops::fill(lane, gradient, 0);
    ops::add_in_place(lane, gradient, sum);
  });
}

}  // namespace weft::nn
