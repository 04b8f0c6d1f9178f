// weft score
#include "train/score.hpp"

#include "cli/commands.hpp"
#include "train/options.hpp"

namespace weft {

int run_score_command(Args args) {
  ScoreOptions score;
  OptionSet options("weft score", "Loss, logits and gradients of given tokens; the same on every layout.");
  options.topic("score");
  options.text("load", score.load, "DIR", "a checkpoint of any layout, or a Hugging Face folder").required();
  options
      .text("tokens", score.tokens, "FILE.safetensors",
            "input_ids [B, S]; labels [B, S], -100 ignored (default: the input shifted left by one)")
      .required();
  options.text("out", score.out, "OUT.safetensors", "logits [B, S, V], loss [1], grad.NAME").required();
  options.flag("grads", score.grads, "also the gradient of the mean loss for every parameter");
  options.text("dtype", score.dtype, "TYPE", "of weights and activations: fp32, bf16, fp16 or fp64");
  options.integer("micro-batch-size", score.micro_batch_size, {.low = 1}, "rows at a time on each rank");
  add_parallel_options(options, score.parallel);
  if (answered(options, args)) return 0;
  TrainConfig layout;
  layout.parallel = score.parallel;
  if (std::vector<std::string> problems = unsupported_yet(layout); !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  const ScoreResult result = run_score(score);
  if (result.reports) print(fmt::format("loss={:.9g}\ntokens={}\n", result.loss, result.tokens));
  return 0;
}

}  // namespace weft
