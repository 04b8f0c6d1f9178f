// weft generate
#include "train/generate.hpp"

#include <algorithm>
#include <limits>

#include "cli/commands.hpp"
#include "core/log.hpp"
#include "train/options.hpp"

namespace weft {

int run_generate_command(Args args) {
  GenerateOptions generate;
  std::int64_t seed = 1234;
  constexpr std::int64_t kAny = std::numeric_limits<std::int32_t>::min();
  constexpr Reals kAnyReal{};
  OptionSet options("weft generate", "Continues prompts, token by token.");
  options.topic("generate");
  options.text("load", generate.load, "DIR", "a checkpoint of any layout, or a Hugging Face folder")
      .required();
  options.text("prompt", generate.prompt, "TEXT", "the text to continue");
  options.text("prompt-tokens", generate.prompt_tokens, "1,2,3", "token ids to continue");
  options.text("prompt-file", generate.prompt_file, "FILE",
               "a prompt on each line (token ids where the model has no tokenizer)");
  options.integer("max-new-tokens", generate.max_new_tokens, {.low = kAny}, "tokens to add at most")
      .required();
  // Their bounds are checked with everything else (problems_of): one place says what they may be.
  options.real("temperature", generate.sampling.temperature, kAnyReal,
               "logits are divided by it; 0: always the most probable token");
  options.integer("top-k", generate.sampling.top_k, {.low = kAny},
                  "draw from the k most probable tokens; 0: all");
  options.real("top-p", generate.sampling.top_p, kAnyReal,
               "draw from the fewest tokens that hold this much probability; 1: all");
  options.integer("seed", seed, {.low = 0}, "of the draws: the same for any layout and grouping of prompts");
  options.flag("ignore-eos", generate.ignore_eos, "go on after the token that ends a text");
  options.text("tokens-out", generate.tokens_out, "FILE",
               "prompt and new token ids, separated by spaces, a line per prompt");
  options.text("dtype", generate.dtype, "TYPE", "of weights and activations: fp32, bf16, fp16 or fp64")
      .otherwise("bf16 on GPUs, else fp32");
  options.integer("cpu-threads", generate.cpu_threads, {.low = 0}, "threads per rank")
      .otherwise("cores / ranks of this machine");
  add_parallel_options(options, generate.parallel);
  if (answered(options, args)) return 0;
  generate.prompt_given = options.given("prompt");
  generate.sampling.seed = static_cast<std::uint64_t>(seed);

  const GenerateSummary summary = run_generate(generate, [](std::string_view text) {
    print(text);
    flush_output();
  });
  log_info("{} tokens in {:.2f} s, {:.1f} tokens/s", summary.new_tokens, summary.seconds,
           static_cast<double>(summary.new_tokens) / std::max(summary.seconds, 1e-9));
  return 0;
}

}  // namespace weft
