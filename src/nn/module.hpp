// The slots of a transformer, one small abstract class each. A module is immutable once built and may serve
// many microbatches at a time: what a microbatch needs lies in the Microbatch. forward saves what backward
// needs; backward returns the gradient of the input and defers the weight gradient to mb.later; weight_grad
// (called by the queue) adds it to main_grad.
//
// Shapes: s sequence, b microbatch, h hidden size; under sequence parallel s is this rank's part where the
// text says so.
#pragma once

#include "comm/async.hpp"
#include "nn/microbatch.hpp"

namespace weft::nn {

class Norm {
 public:
  virtual ~Norm() = default;
  // x, y [s, b, h] (or any [..., h])
  virtual Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const = 0;
  // dx + dresidual; dresidual (what reaches x past the norm) may be undefined.
  virtual Tensor backward(Lane& lane, const Tensor& dy, const Tensor& dresidual, Microbatch& mb) const = 0;
};

class Linear {
 public:
  virtual ~Linear() = default;
  // x [s, b, in] -> y [s, b, out], sizes of this rank
  virtual Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const = 0;
  // Starts what must be summed over ranks and returns: the caller lets other work run before it waits.
  virtual Async<Tensor> backward(Lane& lane, const Tensor& dy, Microbatch& mb) const = 0;
};

// backward of a linear with its weight gradient running under the communication of its input gradient.
inline Tensor input_gradient(Lane& lane, const Linear& linear, const Tensor& dy, Microbatch& mb) {
  Async<Tensor> dx = linear.backward(lane, dy, mb);
  mb.later.reached(lane, DrainPoint::kLinear);
  return dx.wait(lane);
}

class CoreAttention {
 public:
  virtual ~CoreAttention() = default;
  // q [s, b, heads · d], k and v [s, b, groups · d] (views of packed qkv) -> [s, b, heads · d]
  virtual Tensor forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                         Microbatch& mb) const = 0;
  // Writes dq, dk, dv (views of packed dqkv).
  virtual void backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                        Microbatch& mb) const = 0;
};

// Self-attention or a feed-forward network between its norm and its bias-dropout-add.
class Sublayer {
 public:
  virtual ~Sublayer() = default;
  // [s, b, h] -> [s, b, h], without the output bias
  virtual Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const = 0;
  virtual Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const = 0;
};

class ResidualAdd {
 public:
  virtual ~ResidualAdd() = default;
  // residual + dropout(x + bias)
  virtual Tensor forward(Lane& lane, const Tensor& x, const Tensor& residual, Microbatch& mb) const = 0;
  // The gradient of x; the residual's is dy itself.
  virtual Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const = 0;
};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const = 0;
  virtual Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const = 0;
};

}  // namespace weft::nn
