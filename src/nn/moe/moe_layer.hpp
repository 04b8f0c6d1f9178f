// A mixture of experts in place of a feed-forward network (Shazeer et al. 2017): router, tokens to their
// experts, experts, back. What every rank can do without other ranks' tokens runs while they are on their
// way: the shared expert in the forward pass; the shared expert and weight gradients in the backward pass.
#pragma once

#include <memory>

#include "nn/module.hpp"
#include "nn/moe/exchange.hpp"
#include "nn/moe/grouped_experts.hpp"
#include "nn/moe/router.hpp"
#include "nn/moe/shared_expert.hpp"
#include "nn/moe/token_share.hpp"

namespace weft::nn {

class MoeLayer final : public Sublayer {
 public:
  struct Parts {
    std::unique_ptr<TokenShare> share;
    std::unique_ptr<Router> router;
    std::unique_ptr<ExpertExchange> exchange;
    std::unique_ptr<GroupedExperts> experts;
    std::unique_ptr<SharedExpert> shared;  // or null
  };
  explicit MoeLayer(Parts parts) : parts_(std::move(parts)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  struct Saved {
    std::shared_ptr<const ExpertExchange::Plan> plan;
  };
  Parts parts_;
};

}  // namespace weft::nn
