// Bias, dropout and residual in one pass. The mask of element (sample, token, channel) is a function of the
// key and of these global indices only: Philox counter = (channel / 4 | token << 32, sample), word = channel
// % 4; it is kept when uniform(word) ≥ p, and then scaled by 1 / (1 − p).
#pragma once

#include "core/lane.hpp"
#include "core/rng.hpp"
#include "ops/row_positions.hpp"

namespace weft::ops {

struct DropoutSite {
  double p = 0;
  RandomKey key;                   // of (seed, step, layer, site)
  Tensor sample_ids;               // [b] i64: global sample numbers; needed when p > 0
  RowPositions tokens;             // of the rows of dim 0 (sequence and context parallel)
  std::int64_t first_channel = 0;  // global number of the first channel
};

// out = residual + dropout(x + bias); x, residual [s, b, h]; bias [h] may be undefined; residual may be
// undefined (0).
Tensor bias_dropout_add(Lane& lane, const Tensor& x, const Tensor& bias, const Tensor& residual,
                        const DropoutSite& site);
// dx = mask · dout / (1 − p). With p = 0 it returns dout itself (no copy).
Tensor dropout_backward(Lane& lane, const Tensor& dout, const DropoutSite& site);

}  // namespace weft::ops
