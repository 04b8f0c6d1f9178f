// Which tokens a rank of a tensor-parallel group routes: each token is routed by one rank of the group, so
// that experts, which may lie on any rank, see it once.
#pragma once

#include "comm/communicator.hpp"

namespace weft::nn {

class TokenShare {
 public:
  virtual ~TokenShare() = default;
  // Rows of x [s, b, ...] as they come into a layer -> this rank's tokens [n, ...].
  virtual Tensor take(Lane& lane, const Tensor& x) const = 0;
  // Back: this rank's y [n, h] -> [s, b, h] as it leaves the layer. The derivative of take for tensors that
  // are the same on every rank of the group, and take that of give.
  virtual Tensor give(Lane& lane, const Tensor& y, const Shape& shape) const = 0;
};

// What comes in is this rank's own: under sequence parallel, and in a group of one.
class OwnTokens final : public TokenShare {
 public:
  Tensor take(Lane&, const Tensor& x) const override;
  Tensor give(Lane&, const Tensor& y, const Shape& shape) const override { return y.view(shape); }
};

// Every rank of the group has all tokens and takes equally many positions of them, filled up with zeros where
// they do not divide (which are no tokens: `counted` has zeros for them too).
class SharedTokens final : public TokenShare {
 public:
  explicit SharedTokens(Communicator& tp) : tp_(tp) {}
  Tensor take(Lane& lane, const Tensor& x) const override;
  Tensor give(Lane& lane, const Tensor& y, const Shape& shape) const override;

 private:
  Communicator& tp_;
};

}  // namespace weft::nn
