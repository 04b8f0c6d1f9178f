// The one place where a rank's gradients become the gradients of the whole batch.
#pragma once

#include "data_parallel/param_buffer.hpp"

namespace weft {

struct FinalizeGroups {
  Communicator& tp;
  // The tensor-parallel ranks that share a key/value group; null where nobody shares.
  Communicator* kv_replicas;
  // The first and the last stage of a tied model; null where one rank holds both, or on other stages.
  Communicator* embedding;
};

// After the last contribution of a step; what remains is one factor (1 / target tokens, loss scale, clip),
// which the optimizer applies. In this order, over what each rank owns of every bucket:
//   1. sums over the data-parallel ranks, and a tied weight's two uses (ParamBuffer::finish_step)
//   2. sums over the tensor-parallel ranks that each computed a part: what sequence parallelism uses on some
//   rows
//      only, and key/value heads that several ranks hold
//   3. the word embeddings of the first and the last stage
void finalize_gradients(Lane& lane, ParamBuffer& buffer, const FinalizeGroups& groups);

}  // namespace weft
