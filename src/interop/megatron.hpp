// Megatron Core's state_dict of a GPT model (local layer spec): names and layouts.
#pragma once

#include "interop/tensor_map.hpp"

namespace weft {

// linear_qkv holds, for each query group, its q heads, then its k head, then its v head; linear_fc1 of a
// gated unit holds the gate rows, then the up rows. Unpadded vocabulary, one rank.
TensorMap megatron_map(const ModelConfig& config);

}  // namespace weft
