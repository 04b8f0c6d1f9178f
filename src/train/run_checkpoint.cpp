#include "train/run_checkpoint.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.hpp"
#include "core/log.hpp"
#include "interop/huggingface_weights.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What a run writes beside its tensors.
std::string trainer_state(const TrainConfig& config, const Progress& progress, const LossScaler& scaler) {
  const OptimizerConfig& o = config.optimizer;
  const Json state = {
      {"consumed_samples", progress.consumed_samples},
      {"scheduled_samples", progress.scheduled_samples},
      {"skipped", progress.skipped},
      {"seed", config.training.seed},
      {"loss_scaler",
       {{"scale", scaler.state().scale},
        {"clean", scaler.state().clean},
        {"hysteresis_left", scaler.state().hysteresis_left},
        {"floor_skips", scaler.state().floor_skips}}},
      {"schedule",
       {{"lr", o.lr},
        {"min_lr", o.min_lr},
        {"lr_decay_style", static_cast<int>(o.lr_decay_style)},
        {"lr_decay_iters", o.lr_decay_iters},
        {"lr_decay_samples", o.lr_decay_samples},
        {"lr_warmup_iters", o.lr_warmup_iters},
        {"lr_warmup_samples", o.lr_warmup_samples},
        {"lr_warmup_fraction", o.lr_warmup_fraction},
        {"lr_warmup_init", o.lr_warmup_init}}},
  };
  return state.dump();
}

void check_seed(const Json& state, const TrainConfig& config) {
  if (config.checkpoint.no_load_rng || state.at("seed").get<std::int64_t>() == config.training.seed) return;
  config_fail(
      "--seed {} but {} was trained with --seed {}: dropout masks and the order of samples would change in "
      "the "
      "middle of the run; leave --seed out or say --no-load-rng",
      config.training.seed, config.checkpoint.load, state.at("seed").get<std::int64_t>());
}

Progress progress_of(const CheckpointInfo& info, const Json& state) {
  return {.iteration = info.iteration,
          .consumed_samples = state.at("consumed_samples").get<std::int64_t>(),
          .scheduled_samples = state.at("scheduled_samples").get<std::int64_t>(),
          .skipped = state.at("skipped").get<std::int64_t>()};
}

void restore_scaler(const Json& state, LossScaler& scaler) {
  const Json& s = state.at("loss_scaler");
  scaler.set_state({.scale = s.at("scale").get<double>(),
                    .clean = s.at("clean").get<std::int64_t>(),
                    .hysteresis_left = s.at("hysteresis_left").get<std::int64_t>(),
                    .floor_skips = s.at("floor_skips").get<std::int64_t>()});
}

}  // namespace

ModelConfig model_config_of(const std::string& folder) {
  if (has_checkpoint(folder)) return model_config_from_json(read_checkpoint_info(folder).model);
  return config_from_huggingface(folder);
}

void load_weights(const std::string& folder, Lane& lane, Engine& engine) {
  if (has_checkpoint(folder)) {
    const CheckpointReader reader(folder);
    load_weights(lane, reader, engine.buffer(), engine.optimizer());
  } else {
    const HuggingFaceWeights weights(folder);
    load_weights(lane, weights, engine.buffer(), engine.optimizer());
  }
}

void use_loaded_model(TrainConfig& config) {
  // A run that starts with --load and --save on the same, still empty folder begins from scratch.
  if (config.checkpoint.load == config.checkpoint.save && !has_checkpoint(config.checkpoint.load)) {
    config.checkpoint.load.clear();
    return;
  }
  const ModelConfig loaded = resolved(model_config_of(config.checkpoint.load));
  if (config.model.num_layers != 0) {
    ModelConfig asked = config.model;
    if (asked.vocab_size == 0) asked.vocab_size = loaded.vocab_size;
    if (asked.max_position_embeddings == 0) asked.max_position_embeddings = loaded.max_position_embeddings;
    asked = resolved(asked);
    // Dropout, initialisation and padding belong to the run, not to the weights.
    ModelConfig same = loaded;
    same.hidden_dropout = asked.hidden_dropout;
    same.attention_dropout = asked.attention_dropout;
    same.init_method_std = asked.init_method_std;
    same.make_vocab_size_divisible_by = asked.make_vocab_size_divisible_by;
    if (asked != same) {
      config_fail(
          "the model options describe another model than --load {}: leave them out, or load another folder\n"
          "asked for: {}\nloaded:    {}",
          config.checkpoint.load, to_json(asked), to_json(loaded));
    }
    config.model = asked;
  } else {
    config.model = loaded;
  }
}

Progress start_run(const TrainConfig& config, Lane& lane, const Groups&, Engine& engine) {
  const CheckpointConfig& c = config.checkpoint;
  if (c.load.empty()) {
    engine.initialize();
    return {};
  }
  if (!has_checkpoint(c.load) || c.finetune) {
    load_weights(c.load, lane, engine);
    return {};
  }
  const CheckpointReader reader(c.load);
  const Json state = Json::parse(reader.info().trainer);
  check_seed(state, config);
  load_checkpoint(lane, reader, engine.buffer(), *engine.optimizer(), {.optimizer_state = !c.no_load_optim});
  restore_scaler(state, engine.loss_scaler());
  return progress_of(reader.info(), state);
}

std::string save_run(const TrainConfig& config, const RunData& data, Lane& lane, const Groups& groups,
                     Engine& engine, const Progress& progress) {
  CheckpointMeta meta{.iteration = progress.iteration,
                      .model = to_json(config.model),
                      .trainer = trainer_state(config, progress, engine.loss_scaler())};
  if (!data.tokenizer_json.empty()) meta.extra_files["tokenizer.json"] = data.tokenizer_json;
  return save_checkpoint(
             lane, {groups.world, groups.dp, groups.tp}, engine.buffer(), *engine.optimizer(), meta,
             config.checkpoint.save,
             {.optimizer_state = !config.checkpoint.no_save_optim, .keep_last = config.checkpoint.keep_last})
      .string();
}

SaveGuard prepare_save_folder(const TrainConfig& config) {
  if (config.checkpoint.save.empty()) return {};
  return {std::make_shared<SaveFolderLock>(config.checkpoint.save)};
}

}  // namespace weft
