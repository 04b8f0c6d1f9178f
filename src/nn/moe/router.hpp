// Router: which experts a token goes to, with what weight, and the losses that keep experts busy.
//
// The losses are of one microbatch, over all ranks that have tokens of it (tensor and context parallel), and
// weigh as much in the whole loss as the microbatch's target tokens do: so their gradients are the same for
// any layout, accumulation and normalisation.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "nn/microbatch.hpp"
#include "nn/moe/balance.hpp"
#include "nn/moe/token_share.hpp"
#include "nn/param.hpp"
#include "ops/moe.hpp"

namespace weft::nn {

struct RouterShape {
  std::int64_t experts = 0;
  ops::RouterOptions options;
  DType dtype = DType::kF32;  // of logits and weights
  // Coefficients of the losses; the switch loss of each sequence by itself, or of the whole microbatch.
  double aux = 0, sequence_aux = 0, z = 0;
  // Choices that an expert takes of a microbatch: the fraction of an even share, rounded up; 0: all of them.
  double capacity_factor = 0;
  bool drop_by_position = false;

  // Choices that an expert takes of a microbatch of so many tokens; 0: all.
  std::int64_t capacity(std::int64_t tokens) const;
};

class Router {
 public:
  // `microbatch`: the ranks that have tokens of one microbatch. bias [E] may be null; without `statistics`
  // (evaluation) there is no backward pass.
  Router(const RouterShape& shape, const Param& weight, const Param* bias, const TokenShare& share,
         Communicator& microbatch, std::optional<RouterStatistics> statistics)
      : shape_(shape),
        weight_(weight),
        bias_(bias),
        share_(share),
        microbatch_(microbatch),
        statistics_(std::move(statistics)) {}

  // Sums of the balance losses, on their way over the ranks of the microbatch until wait() has returned.
  class Sums {
   public:
    void start(Lane& lane, Communicator& group, const Tensor& own);
    void wait(Lane& lane);
    const std::vector<Tensor>& arrived() const { return arrived_; }

   private:
    std::vector<Async<Tensor>> moving_;
    std::vector<Tensor> arrived_;
  };
  struct Decision {
    ops::Routing routing;  // of this rank's n tokens, weights in the accumulator type of x
    std::shared_ptr<Sums> sums;
  };
  // x [n, h]: this rank's tokens. The caller waits for the sums when it has nothing else to do.
  Decision forward(Lane& lane, const Tensor& x, Microbatch& mb) const;
  // Choices that an expert takes of this microbatch; 0: all.
  std::int64_t capacity(const Microbatch& mb) const { return shape_.capacity(mb.whole_tokens); }
  // dprobs [n, k] -> what reaches x through the router [n, h].
  Tensor backward(Lane& lane, const Tensor& dprobs, Microbatch& mb) const;

  struct Pending {
    Tensor dlogits, x;
  };
  void weight_grad(Lane& lane, Pending pending) const;

 private:
  struct Saved {
    Tensor x, logits, counted;  // x in the router's dtype
    ops::Routing chosen, kept;  // before and after experts were full
    std::shared_ptr<Sums> sums;
  };
  // A loss over groups of tokens: all of a microbatch, or those of each sequence.
  struct Loss {
    bool by_sequence;
    double aux, z;
  };
  std::vector<Loss> losses() const;
  ops::Routing within_capacity(Lane& lane, const ops::Routing& routing, const Microbatch& mb) const;
  void add_statistics(Lane& lane, const Saved& saved, double weight) const;

  RouterShape shape_;
  const Param& weight_;
  const Param* bias_;
  const TokenShare& share_;
  Communicator& microbatch_;
  std::optional<RouterStatistics> statistics_;
};

}  // namespace weft::nn
