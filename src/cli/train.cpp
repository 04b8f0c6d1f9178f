// weft train
#include "train/trainer.hpp"

#include <csignal>
#include <numbers>

#include "cli/commands.hpp"
#include "train/options.hpp"

namespace weft {

int run_train(Args args) {
  TrainConfig config;
  OptionSet options("weft train", "Trains a GPT-family model, from scratch or from --load.");
  add_train_options(options, config);
  if (answered(options, parse_train_options(options, config, args))) return 0;

  const TrainSummary summary = run_training(config);
  const int status = summary.signal == 0 ? 0 : 128 + summary.signal;
  if (!summary.reports) return status;
  print(fmt::format("iteration={}\n", summary.iteration));
  if (summary.steps > 0) print(fmt::format("loss={:.9g}\n", summary.loss));
  if (summary.valid_loss) print(fmt::format("valid_loss={:.4f}\n", *summary.valid_loss));
  if (summary.baselines) {
    print(fmt::format("unigram={:.4f}\nbigram={:.4f}\n", summary.baselines->unigram,
                      summary.baselines->bigram));
    print(fmt::format("bits_per_byte={:.4f}\n",
                      *summary.valid_loss / (summary.baselines->bytes_per_token * std::numbers::ln2)));
  }
  print(fmt::format("tokens_per_second={:.0f}\n", summary.tokens_per_second));
  return status;
}

}  // namespace weft
