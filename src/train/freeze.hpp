// --freeze: what its patterns mean for a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.hpp"

namespace weft {

// What is wrong with the patterns, a line each, with the nearest names: one that matches no tensor, tensors
// of one parameter (q, k and v) that are not frozen together, nothing left to train. The model is resolved
// and sound.
std::vector<std::string> freeze_problems(const ModelConfig& model, const std::vector<std::string>& patterns);

// Parameters that the patterns freeze, tied ones counted once.
std::int64_t frozen_parameters(const ModelConfig& model, const std::vector<std::string>& patterns);

}  // namespace weft
