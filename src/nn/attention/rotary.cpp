#include "nn/attention/rotary.hpp"

namespace weft::nn {

void RotaryRotation::rotate(Lane& lane, const Tensor& x, const Microbatch& mb, bool inverse) const {
  const std::int64_t first = mb.batch.first_position;
  const std::int64_t s = x.dim(0);
  WEFT_CHECK(first + s <= table_.cos.dim(0), "positions up to {} of a rotary table of {}", first + s,
             table_.cos.dim(0));
  const ops::RopeTable rows{table_.cos.slice(first, s), table_.sin.slice(first, s), table_.interleaved};
  ops::rope_in_place(lane, x, rows, Tensor(), head_dim_, inverse);
}

}  // namespace weft::nn
