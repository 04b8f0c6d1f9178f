// Param: one piece of trainable memory of this rank, and what it is in the world. Checkpoints, import and
// export, initialisation, the gradient norm, weight decay and the planner all read its LogicalTensors;
// nothing else knows how a tensor is cut.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/lane.hpp"
#include "core/rng.hpp"

namespace weft {

// How the initial values of a tensor are drawn. Element e of the *global* tensor is a function of (seed,
// name, e), so every layout starts from the same weights.
struct Init {
  enum class Kind { kZeros, kOnes, kNormal };
  Kind kind = Kind::kZeros;
  double std = 0;
  bool operator==(const Init&) const = default;
};

// A canonical tensor as files and users know it ("decoder.layers.3.self_attention.linear_q.weight"), and the
// part of it that one rank holds: indices [begin, begin + count) of dim `cut`. A range may reach past the
// global size; what does is padding: zero, without a gradient, in no file.
struct LogicalTensor {
  std::string name;
  Shape global;            // unpadded
  int cut = -1;            // dim that is cut over tensor-parallel ranks; −1: whole on every rank
  std::int64_t begin = 0;  // of dim `cut`, in global indices
  std::int64_t count = 0;
  std::int64_t local_row = 0;  // first row of this part inside the Param's local tensor
  Init init;
  // Where there are more tensor-parallel ranks than key/value groups, `replicas` neighbouring ranks hold the
  // same piece; this rank is number `replica` of them. (What is not cut at all is on every rank anyway.)
  int replicas = 1, replica = 0;
  // Every rank that holds this piece computes a part of its gradient, and the parts must be added up: the
  // replicas above, and what is used inside a sequence-parallel region. Otherwise all of them compute the
  // same.
  bool partial_gradient = false;
  // Of an expert: its global number. It is cut over expert-tensor-parallel ranks and on one expert-parallel
  // rank alone.
  int expert = -1;
  // Not trained, but changed by a rule of its own and kept in the accumulator type (a router's expert bias).
  bool state = false;

  // `global` with dim `cut` replaced by `count`: padding included.
  Shape local_shape() const;
  // Of `count`, the indices that exist in the global tensor.
  std::int64_t real_count() const;
  // Of the tensor-parallel ranks that hold this piece, the one that counts it and writes it.
  bool primary(int tp_rank) const { return cut < 0 ? tp_rank == 0 : replica == 0; }
};

// Told when a parameter's gradient has all its contributions (data_parallel implements it).
class GradSink {
 public:
  virtual ~GradSink() = default;
  virtual void gradient_ready(const class Param& param) = 0;
};

struct ParamTraits {
  bool decay = false;  // weight decay applies: two dims and not a bias
  // Place in the model, wherever it is cut into stages: 0 the embedding, 1 + layer, and what follows the
  // layers.
  int block = 0;
  // Lies in a bucket of its own, so that the word embeddings of two stages are cut alike over data-parallel
  // ranks.
  bool own_bucket = false;
  // Another stage's parameter, held here a second time (the word embeddings of a tied model, on the last
  // stage): drawn and loaded like it, updated with the same sum of gradients, but neither counted nor
  // written.
  bool copy = false;
  // Never updated by an optimizer: it has no gradient, no optimizer state and no place in a bucket.
  bool frozen = false;
  // Of experts: the ranks that hold the same are those of the expert grid (see Mesh).
  bool expert = false;
};

class Param {
 public:
  // `local` = the parts, one below the other.
  Param(std::string name, Shape local, std::vector<LogicalTensor> parts, const ParamTraits& traits);

  const std::string& name() const { return name_; }
  const Shape& local_shape() const { return local_; }
  const std::vector<LogicalTensor>& parts() const { return parts_; }
  const ParamTraits& traits() const { return traits_; }
  bool decay() const { return traits_.decay; }
  bool trains() const { return !traits_.frozen; }
  bool state() const { return parts_.front().state; }
  // A second use of another parameter's weight (a tied output layer): weight() is the owner's memory,
  // main_grad() is its own and is added to the owner's once, after the step's last contribution. Null for
  // every other parameter.
  const Param* owner() const { return owner_; }

  // --- memory: views into the flat buffers of data_parallel, set once before the first step
  const Tensor& weight() const { return weight_; }  // compute dtype; of a state the accumulator type
  const Tensor& main_grad() const {
    return main_grad_;
  }  // accumulator type: Σ over target tokens of d loss / d weight
  void bind(Tensor weight, Tensor main_grad, GradSink* sink);  // a frozen one has no main_grad

  // The local piece of one logical part inside `whole` (weight(), main_grad(), or a tensor shaped like them).
  Tensor part_of(const Tensor& whole, const LogicalTensor& part) const;

  // --- gradient accounting within a step
  // A new step, in which weight-gradient tasks add to main_grad this often: microbatches × uses.
  void begin_step(int contributions) const {
    expected_ = contributions;
    contributions_ = 0;
  }
  // 0 for the first contribution of a step (it writes), then 1 (they add).
  float beta() const { return contributions_ == 0 ? 0.0f : 1.0f; }
  int contributions() const { return contributions_; }
  // One contribution has been added (called by the module, after its weight-gradient operation). Nothing for
  // a frozen parameter.
  void ready() const;
  // One contribution of a step: add(main_grad, beta) is called where there is a gradient to add to.
  template <class Add>
  void contribute(const Add& add) const {
    if (!trains()) return;
    add(main_grad_, beta());
    ready();
  }

 private:
  friend class ParamSet;
  std::string name_;
  Shape local_;
  std::vector<LogicalTensor> parts_;
  ParamTraits traits_;
  const Param* owner_ = nullptr;
  Tensor weight_, main_grad_;
  GradSink* sink_ = nullptr;
  // Modules are const while they run; what a step does to a parameter is counted here.
  mutable int contributions_ = 0, expected_ = 0;
};

// What a linear layer saves of its input: nothing where the weight is frozen.
inline Tensor kept_input(const Tensor& x, const Param& weight) {
  return weight.trains() ? x : Tensor();
}
// Whether a linear layer has weight gradients to defer; bias may be null.
inline bool trains(const Param& weight, const Param* bias) {
  return weight.trains() || (bias != nullptr && bias->trains());
}

// Every parameter of a rank, in the order of the forward pass.
class ParamSet {
 public:
  // A new parameter, or the one of this name that an earlier build over the same set has made (the training,
  // evaluation and generation forms of a model share their parameters). Parts in order of their rows.
  Param* add(const std::string& name, std::vector<LogicalTensor> parts, const ParamTraits& traits);
  Param* add_tied(const std::string& name, const Param& owner);
  const std::vector<std::unique_ptr<Param>>& all() const { return params_; }
  Param* find(const std::string& name) const;

 private:
  std::vector<std::unique_ptr<Param>> params_;
};

// Draws the local part of every logical tensor into weight-shaped memory of any floating dtype; padding is
// zero.
void initialize(Lane& lane, const Param& param, const Tensor& weight, RandomKey seed);

}  // namespace weft
