// weft convert: between Hugging Face folders and checkpoints, tensor by tensor.
#pragma once

#include <string>

namespace weft {

struct ConvertOptions {
  std::string from;    // a checkpoint or a Hugging Face folder
  std::string to;      // a new folder
  std::string format;  // hf | weft
  std::string dtype;   // of what is written: fp32, bf16, fp16, fp64; empty: as it is (checkpoints: fp32)
};

// Returns the folder written. ConfigErrors before anything is written: unknown source, a target that exists,
// a model that the format cannot say.
std::string run_convert(const ConvertOptions& options);

}  // namespace weft
