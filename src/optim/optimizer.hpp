// Optimizer: fp32 master weights and moments of every parameter of this rank, and the update.
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
  virtual void step(Lane& lane, const UpdateStep& update) = 0;

  // fp32 weights (fp64 for fp64 models), flat like ParamBuffer::weights(); for fp32 models the weights
  // themselves.
  virtual const Tensor& master() const = 0;
  // Writes the model's weights from the master's (after initialisation or a load of master weights).
  virtual void publish(Lane& lane) = 0;

  // What must be saved beside the master weights: flat tensors like the weights, by their name in checkpoints
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
