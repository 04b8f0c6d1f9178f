// Which family of Hugging Face models expresses a configuration, and how that family stores its tensors.
#pragma once

#include <string>

#include "model/config.hpp"

namespace weft {

enum class HuggingFaceFamily { kGpt2, kLlama, kMistral, kQwen2, kQwen3, kDeepseekV3, kMixtral, kQwen3Moe };
// The model_type of config.json.
const char* name_of(HuggingFaceFamily family);

// ConfigError listing every option in the way when there is none.
HuggingFaceFamily huggingface_family(const ModelConfig& config);
// Names of the family's tensors start with it in a full model, and lack it in files of the bare decoder.
const char* name_prefix(HuggingFaceFamily family);
// A tensor that some files hold though it follows from the configuration (masks, rotary frequencies).
bool is_derived(const std::string& name);

}  // namespace weft
