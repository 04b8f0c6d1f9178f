// Stage: what a pipeline knows of a model. One for each chunk of a rank; the executor calls it as the program
// says.
#pragma once

#include "core/lane.hpp"
#include "core/tensor.hpp"

namespace weft {

class Stage {
 public:
  virtual ~Stage() = default;
  // `received` is what the stage before made for this microbatch, undefined on the first one; the result goes
  // to the next one, undefined on the last.
  virtual Tensor forward(Lane& lane, int microbatch, const Tensor& received) = 0;
  // The same with gradients, from the next stage to the one before. The weight gradient may be left for
  // later.
  virtual Tensor backward(Lane& lane, int microbatch, const Tensor& received) = 0;
  // Finishes the microbatch here: what backward has left.
  virtual void weight_grad(Lane& lane, int microbatch) = 0;
  // Memory for a message to this stage: an activation [s, b, h] or its gradient.
  virtual Tensor message(Lane& lane) const = 0;
};

}  // namespace weft
