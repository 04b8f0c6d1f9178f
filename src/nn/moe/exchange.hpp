// Between the tokens of a rank and the experts of a rank: rows go to their experts and come back. The two
// ways are each other's derivative, so an exchange has two linear maps, and a plan that both follow.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "ops/moe.hpp"

namespace weft::nn {

// What has been started: wait() gives the result.
class Moved {
 public:
  using Finish = std::function<Tensor(Lane&, Tensor)>;
  explicit Moved(Async<Tensor> moving, Finish finish = {})
      : moving_(std::move(moving)), finish_(std::move(finish)) {}
  Tensor wait(Lane& lane) {
    Tensor arrived = moving_.wait(lane);
    return finish_ ? finish_(lane, std::move(arrived)) : arrived;
  }
  // The same with `next` after what finishes it now.
  Moved then(Finish next) && {
    return Moved(std::move(moving_),
                 [first = std::move(finish_), second = std::move(next)](Lane& lane, Tensor x) {
                   return second(lane, first ? first(lane, std::move(x)) : std::move(x));
                 });
  }

 private:
  Async<Tensor> moving_;
  Finish finish_;
};

class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  // Where the rows of one microbatch go.
  struct Plan {
    Tensor rows;            // [n, k] i32: see ops::ExpertOrder
    Tensor offsets;         // [local experts + 1] i32: the rows of each expert of this rank
    std::int64_t size = 0;  // R: rows at this rank's experts, some of them perhaps nobody's
    virtual ~Plan() = default;
  };
  // experts [n, k]: global numbers, −1: none. capacity: choices that an expert takes of a microbatch; 0: all.
  // The plan outlives what is started with it. Collective.
  virtual std::shared_ptr<const Plan> plan(Lane& lane, const Tensor& experts,
                                           std::int64_t capacity) const = 0;
  // x [n, h] -> [R, h] in the order of this rank's experts; each token to all its choices.
  virtual Moved spread(Lane& lane, const Plan& plan, const Tensor& x) const = 0;
  // y [R, h] -> [n, h]: the sum over a token's choices.
  virtual Moved collect(Lane& lane, const Plan& plan, const Tensor& y) const = 0;
  // The same for a number of each choice: [n, k] -> [R] and back.
  virtual Moved spread_values(Lane& lane, const Plan& plan, const Tensor& values) const = 0;
  virtual Moved collect_values(Lane& lane, const Plan& plan, const Tensor& y) const = 0;
};

// How the experts of a layer lie on the ranks of a group: etp ranks share each expert, neighbours in the
// group; after them come those with the next experts.
struct ExpertPlacement {
  std::int64_t experts = 0;  // of the layer
  int topk = 0;
  int etp = 1, ep = 1;
  int rank = 0;          // in the group of etp · ep
  int microbatches = 1;  // whose tokens the group has
  bool padded = false;   // each expert has as many rows as its capacity, whoever has chosen it
  std::int64_t local() const { return experts / ep; }
  std::int64_t first() const { return rank / etp * local(); }
  // Rows of one expert at most; 0: no limit.
  std::int64_t per_expert(std::int64_t capacity) const { return capacity * microbatches; }
  // Rows at the experts of a rank at most, of so many tokens of the whole group: what memory is planned for.
  std::int64_t rows(std::int64_t tokens, std::int64_t capacity) const;
};

// All experts are this rank's own: no communication, and nothing that the host must know.
class LocalExchange final : public ExpertExchange {
 public:
  explicit LocalExchange(const ExpertPlacement& placement) : placement_(placement) {}
  std::shared_ptr<const Plan> plan(Lane& lane, const Tensor& experts, std::int64_t capacity) const override;
  Moved spread(Lane& lane, const Plan& plan, const Tensor& x) const override;
  Moved collect(Lane& lane, const Plan& plan, const Tensor& y) const override;
  Moved spread_values(Lane& lane, const Plan& plan, const Tensor& values) const override;
  Moved collect_values(Lane& lane, const Plan& plan, const Tensor& y) const override;

 private:
  ExpertPlacement placement_;
};

// Every rank of the group gets all tokens of the group, computes what its experts make of them, and the sums
// are reduce-scattered.
class AllGatherExchange final : public ExpertExchange {
 public:
  AllGatherExchange(const ExpertPlacement& placement, Communicator& group)
      : placement_(placement), group_(group) {}
  std::shared_ptr<const Plan> plan(Lane& lane, const Tensor& experts, std::int64_t capacity) const override;
  Moved spread(Lane& lane, const Plan& plan, const Tensor& x) const override;
  Moved collect(Lane& lane, const Plan& plan, const Tensor& y) const override;
  Moved spread_values(Lane& lane, const Plan& plan, const Tensor& values) const override;
  Moved collect_values(Lane& lane, const Plan& plan, const Tensor& y) const override;

 private:
  ExpertPlacement placement_;
  Communicator& group_;
};

// Rows go only where they are needed: each rank sorts its (token, choice) pairs by expert and sends them to
// the ranks that have them, all of an expert's etp ranks; these sort what they got from everywhere.
class AllToAllExchange final : public ExpertExchange {
 public:
  AllToAllExchange(const ExpertPlacement& placement, Communicator& group)
      : placement_(placement), group_(group) {}
  std::shared_ptr<const Plan> plan(Lane& lane, const Tensor& experts, std::int64_t capacity) const override;
  Moved spread(Lane& lane, const Plan& plan, const Tensor& x) const override;
  Moved collect(Lane& lane, const Plan& plan, const Tensor& y) const override;
  Moved spread_values(Lane& lane, const Plan& plan, const Tensor& values) const override;
  Moved collect_values(Lane& lane, const Plan& plan, const Tensor& y) const override;

 private:
  struct Routes;
  Moved send(Lane& lane, const Routes& routes, const Tensor& sorted) const;
  Moved send_back(Lane& lane, const Routes& routes, const Tensor& y) const;

  ExpertPlacement placement_;
  Communicator& group_;
};

}  // namespace weft::nn
