// weft score: the loss, logits and gradients of given tokens. The result does not depend on the layout.
#pragma once

#include <string>

#include "train/config.hpp"

namespace weft {

struct ScoreOptions {
  std::string load;    // a weft checkpoint or a Hugging Face folder
  std::string tokens;  // FILE.safetensors: input_ids [B, S], labels [B, S] (optional)
  std::string out;     // OUT.safetensors: logits [B, S, V], loss [1], grad.NAME
  bool grads = false;
  std::string dtype = "fp32";  // fp32, bf16, fp16 or fp64
  std::int64_t micro_batch_size = 1;
  ParallelConfig parallel;
};

struct ScoreResult {
  double loss = 0;  // mean over the target tokens
  std::int64_t tokens = 0;
  bool reports = true;  // this process holds rank 0
};

// Collects every problem before anything runs (ConfigError). Writes options.out whole or not at all.
ScoreResult run_score(const ScoreOptions& options);

}  // namespace weft
