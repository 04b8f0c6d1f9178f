// weft generate: text or token ids that follow prompts.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "infer/sampler.hpp"
#include "train/config.hpp"

namespace weft {

struct GenerateOptions {
  std::string load;  // a weft checkpoint or a Hugging Face folder
  // Exactly one of these; the first two may say nothing and are then not given.
  std::string prompt;
  std::string prompt_tokens;  // "1,2,3"
  std::string prompt_file;    // a prompt on each line; token ids where the model has no tokenizer
  bool prompt_given = false;  // --prompt, even if empty
  std::int64_t max_new_tokens = 0;
  SamplingOptions sampling;
  bool ignore_eos = false;
  std::string tokens_out;        // FILE: a line of ids for each prompt, prompt and new ones; empty: none
  std::string dtype;             // fp32, bf16, fp16 or fp64; empty: bf16 on GPUs, else fp32
  std::int64_t cpu_threads = 0;  // per rank; 0: cores / ranks
  ParallelConfig parallel;
};

struct GenerateSummary {
  std::int64_t prompts = 0, new_tokens = 0;
  double seconds = 0;  // of generation, without loading
};

// Gives `print` prompt and continuation as they come, prompts in order, each ended by a line end: text, or
// ids where the model has no tokenizer. Collects every problem before anything runs (ConfigError).
GenerateSummary run_generate(const GenerateOptions& options,
                             const std::function<void(std::string_view)>& print);

}  // namespace weft
