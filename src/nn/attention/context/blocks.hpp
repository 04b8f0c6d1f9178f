// What the attention of some queries to some keys is, when both are stretches of one sequence.
#pragma once

#include <optional>

#include "nn/attention/core_attention.hpp"
#include "nn/sequence_cut.hpp"

namespace weft::nn {

// Consecutive positions of a sequence: from `position` on, in rows [row, row + rows) of a rank's tensors.
struct Stretch {
  std::int64_t position = 0, row = 0, rows = 0;
  Tensor of(const Tensor& x) const { return x.slice(row, rows); }
};
inline Stretch stretch_of(const SequenceCut& cut, int rank, int chunk) {
  return {cut.start(rank, chunk), chunk * cut.chunk, cut.chunk};
}

// For attention of `queries` to `keys`, of which each query sees those at its own and earlier positions; no
// value: none. `heads`: of queries.
std::optional<ops::AttentionOptions> attention_between(Lane& lane, const CoreAttentionShape& shape,
                                                       const Microbatch& mb, std::int64_t heads,
                                                       const Stretch& queries, const Stretch& keys);

// Keys and values of a rank (or their gradients) in one message: [2 · rows, b, groups · d], keys first.
Tensor packed_keys_values(Lane& lane, const Tensor& k, const Tensor& v);

}  // namespace weft::nn
