// The table of options: every name that a user can type for a TrainConfig, its help and bounds, topic by
// topic. A subcommand declares the topics it needs: weft train all of them, weft score just the parallel one
// beside its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/config.hpp"
#include "train/option_set.hpp"

namespace weft {

void add_model_options(OptionSet& options, ModelConfig& model);
void add_moe_options(OptionSet& options, ModelConfig& model);
void add_latent_options(OptionSet& options, LatentConfig& latent);  // of add_model_options
void add_parallel_options(OptionSet& options, ParallelConfig& parallel);
void add_optimizer_options(OptionSet& options, OptimizerConfig& optimizer);
void add_data_options(OptionSet& options, DataConfig& data);
void add_training_options(OptionSet& options, TrainingConfig& training);
void add_checkpoint_options(OptionSet& options, CheckpointConfig& checkpoint);
void add_log_options(OptionSet& options, LogConfig& log);

// All of them, --config, --preset and --print-config.
void add_train_options(OptionSet& options, TrainConfig& config);

// Reads the arguments into `config`, which `options` were bound to by add_train_options. Throws one
// ConfigError with everything that is wrong: names, values, files, contradictions (problems_of) and what this
// build cannot run (unsupported_yet). Afterwards `config` is resolved.
OptionSet::Request parse_train_options(OptionSet& options, TrainConfig& config, OptionSet::Args args);

// presets/NAME.toml as it was when this program was built.
std::vector<std::string> preset_names();
std::optional<std::string> preset_text(const std::string& name);

}  // namespace weft
