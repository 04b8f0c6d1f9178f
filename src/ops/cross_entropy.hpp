// Softmax cross-entropy over a vocabulary that may be cut over ranks (vocabulary parallel). The logits are
// read in their own dtype and never copied to f32; backward overwrites them. Rows are [s, b] flattened;
// labels [b, s] i32, −100 (any negative) is ignored: loss 0, gradient exactly 0.
//
// Steps, with two small reductions between them where the vocabulary is cut:
//   local  = cross_entropy_local(logits)           one pass: row maximum and sums relative to it
//   max    = all_reduce max of local.max
//   sums   = cross_entropy_rescale(local, max)     then all_reduce sum of sums
//   result = cross_entropy_finish(max, sums)       loss and log-sum-exp of each row
//   dlogits = cross_entropy_backward(logits, ...)  in place
#pragma once

#include "core/lane.hpp"

namespace weft::ops {

struct CrossEntropyOptions {
  std::int64_t vocabulary = 0;  // unpadded, global
  std::int64_t first = 0;  // global id of the first local column; columns at or past `vocabulary` are padding
  double label_smoothing = 0;  // Megatron's form: the mass goes to the other vocabulary − 1 entries
  double z_loss = 0;           // + z_loss · lse², per row
};

struct CrossEntropyLocal {
  Tensor max;   // [rows] f32 (f64 for f64)
  Tensor sums;  // [3, rows]: Σ exp(logit − max); the label's logit (0 if another rank's); Σ logits
};

CrossEntropyLocal cross_entropy_local(Lane& lane, const Tensor& logits, const Tensor& labels,
                                      const CrossEntropyOptions& options);
// sums [3, rows] relative to the global maximum; in place on local.sums.
void cross_entropy_rescale(Lane& lane, const CrossEntropyLocal& local, const Tensor& max);

struct CrossEntropyResult {
  Tensor losses;  // [rows] f32 (f64): per-token loss, smoothing and z-loss included, 0 where ignored
  Tensor lse;     // [rows]
};
CrossEntropyResult cross_entropy_finish(Lane& lane, const Tensor& max, const Tensor& sums,
                                        const Tensor& labels, const CrossEntropyOptions& options);
// logits := d(scale · Σ losses)/d logits; padding columns become 0.
void cross_entropy_backward(Lane& lane, const Tensor& logits, const Tensor& lse, const Tensor& labels,
                            const CrossEntropyOptions& options, double scale);
// All steps at once, for a vocabulary that is not cut: losses, log-sum-exp and, in place of the logits,
// their gradient; on a GPU each logit is read and written once.
CrossEntropyResult cross_entropy_fused(Lane& lane, const Tensor& logits, const Tensor& labels,
                                       const CrossEntropyOptions& options, double scale);

}  // namespace weft::ops
