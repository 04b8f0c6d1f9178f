// Optimizer: fp32 master weights and moments of the parameters that this rank owns (see ParamBuffer), and the
// update.
#pragma once

#include <string>
#include <vector>

#include "data_parallel/param_buffer.hpp"

namespace weft {

// What one update is made with; everything that varies by step.
struct UpdateStep {
  double lr = 0;
  double weight_decay = 0;    // of parameters that decay
  double gradient_scale = 1;  // clip coefficient / number of target tokens / loss scale
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // What is owned and what of it decays, again: where marks have changed since this was made.
  virtual void read_marks(Lane& lane) = 0;
  // Updates what is owned, in the master and in the model's weights; what others own comes by a gather.
  virtual void step(Lane& lane, const UpdateStep& update) = 0;

  // fp32 weights (fp64 for fp64 models) of what is owned, flat [owned_elems]; the model's weights themselves
  // where they have that type and are owned whole.
  virtual const Tensor& master() const = 0;
  // Writes what is owned of the model's weights from the master's (after initialisation or a load).
  virtual void publish(Lane& lane) = 0;

  // What must be saved beside the master weights: flat tensors [owned_elems], by their name in checkpoints
  // ("exp_avg", "exp_avg_sq", "momentum").
  struct State {
    std::string name;
    Tensor flat;
  };
  virtual std::vector<State> state() const = 0;
  // Updates made so far: Adam's t.
  virtual std::int64_t steps() const = 0;
  virtual void set_steps(std::int64_t steps) = 0;
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};
std::unique_ptr<Optimizer> make_adamw(Lane& lane, const ParamBuffer& buffer, const AdamWOptions& options);

struct SgdOptions {
  double momentum = 0.9;
};
std::unique_ptr<Optimizer> make_sgd(Lane& lane, const ParamBuffer& buffer, const SgdOptions& options);

}  // namespace weft
