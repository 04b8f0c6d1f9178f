#include "train/run_checkpoint.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "checkpoint/checkpoint.hpp"
#include "core/log.hpp"
#include "interop/huggingface_weights.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The schedule that a run follows, as a checkpoint keeps it.
Json to_json(const RunSchedule& s) {
  return {{"lr", s.lr.max_lr},
          {"min_lr", s.lr.min_lr},
          {"lr_warmup_init", s.lr.init_lr},
          {"lr_warmup_samples", s.lr.warmup},
          {"lr_decay_samples", s.lr.decay},
          {"lr_decay_style", static_cast<int>(s.lr.style)},
          {"lr_wsd_decay_samples", s.lr.wsd_decay},
          {"lr_wsd_decay_style", static_cast<int>(s.lr.wsd_style)},
          {"start_weight_decay", s.weight_decay.start},
          {"end_weight_decay", s.weight_decay.end},
          {"weight_decay_incr_samples", s.weight_decay.increment},
          {"weight_decay_incr_style", static_cast<int>(s.weight_decay.style)}};
}

void from_json(const Json& j, RunSchedule& s) {
  s.lr.max_lr = j.at("lr");
  s.lr.min_lr = j.at("min_lr");
  s.lr.init_lr = j.at("lr_warmup_init");
  s.lr.warmup = j.at("lr_warmup_samples");
  s.lr.decay = j.at("lr_decay_samples");
  s.lr.style = static_cast<LrSchedule::Style>(j.at("lr_decay_style").get<int>());
  s.lr.wsd_decay = j.at("lr_wsd_decay_samples");
  s.lr.wsd_style = static_cast<LrSchedule::WsdStyle>(j.at("lr_wsd_decay_style").get<int>());
  s.weight_decay.start = j.at("start_weight_decay");
  s.weight_decay.end = j.at("end_weight_decay");
  s.weight_decay.increment = j.at("weight_decay_incr_samples");
  s.weight_decay.style = static_cast<WeightDecaySchedule::Style>(j.at("weight_decay_incr_style").get<int>());
}

// A schedule without the numbers that change nothing: two that are equal so are one schedule.
RunSchedule in_effect(RunSchedule s) {
  if (s.lr.warmup == 0) s.lr.init_lr = 0;
  if (s.lr.style != LrSchedule::Style::kWsd) {
    s.lr.wsd_decay = 0;
    s.lr.wsd_style = {};
  }
  if (s.lr.style == LrSchedule::Style::kConstant) {
    s.lr.decay = 0;
    s.lr.min_lr = 0;
  }
  if (s.weight_decay.style == WeightDecaySchedule::Style::kConstant) {
    s.weight_decay.end = s.weight_decay.start;
    s.weight_decay.increment = 0;
  }
  return s;
}

// A value of a schedule as the options say it: styles by name.
std::string spelled(const std::string& name, const Json& value) {
  static constexpr const char* kLr[] = {"constant", "linear", "cosine", "inverse-square-root", "WSD"};
  static constexpr const char* kWsd[] = {"exponential", "linear", "cosine", "minus_sqrt"};
  const std::span<const char* const> names = name == "lr_decay_style"       ? std::span(kLr).first(5)
                                             : name == "lr_wsd_decay_style" ? std::span(kWsd).first(4)
                                             : name == "weight_decay_incr_style"
                                                 ? std::span(kLr).first(3)
                                                 : std::span<const char* const>();
  if (names.empty() || !value.is_number_integer()) return value.dump();
  const auto i = value.get<std::size_t>();
  return i < names.size() ? names[i] : value.dump();
}

// "name a (loaded: b)" for every field of two JSON objects that differs, what lies deeper included.
std::string differences_of(const Json& asked, const Json& loaded, const char* other) {
  std::string text;
  for (const auto& [name, value] : asked.items()) {
    if (loaded.contains(name) && loaded.at(name) == value) continue;
    text += fmt::format("{}{} {} ({}: {})", text.empty() ? "" : ", ", name, spelled(name, value), other,
                        loaded.contains(name) ? spelled(name, loaded.at(name)) : "nothing");
  }
  return text;
}

// What a run writes beside its tensors.
std::string trainer_state(const TrainConfig& config, const RunSchedule& schedule, const Progress& progress,
                          const LossScaler& scaler) {
  const Json state = {{"consumed_samples", progress.consumed_samples},
                      {"scheduled_samples", progress.scheduled_samples},
                      {"skipped", progress.skipped},
                      {"seed", config.training.seed},
                      {"loss_scaler",
                       {{"dynamic", scaler.is_dynamic()},
                        {"scale", scaler.state().scale},
                        {"clean", scaler.state().clean},
                        {"hysteresis_left", scaler.state().hysteresis_left},
                        {"floor_skips", scaler.state().floor_skips}}},
                      {"schedule", to_json(schedule)}};
  return state.dump();
}

// The trainer's part of a checkpoint that this run continues; nothing for one that holds weights alone
// (--finetune, a converted model, a Hugging Face folder).
std::optional<Json> continued_state(const TrainConfig& config) {
  const CheckpointConfig& c = config.checkpoint;
  if (c.load.empty() || c.finetune || !has_checkpoint(c.load)) return std::nullopt;
  const CheckpointInfo info = read_checkpoint_info(c.load);
  Json state = Json::parse(info.trainer);
  if (!state.contains("consumed_samples")) return std::nullopt;
  return state;
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
  // A constant scale is the options' to say; a dynamic one goes on only where there was one.
  const Json& s = state.at("loss_scaler");
  if (!scaler.is_dynamic() || !s.value("dynamic", s.at("scale").get<double>() > 1)) return;
  scaler.set_state({.scale = s.at("scale").get<double>(),
                    .clean = s.at("clean").get<std::int64_t>(),
                    .hysteresis_left = s.at("hysteresis_left").get<std::int64_t>(),
                    .floor_skips = s.at("floor_skips").get<std::int64_t>()});
}

}  // namespace

ModelConfig model_config_of(const std::string& folder) {
  if (has_checkpoint(folder)) return model_config_from_json(read_checkpoint_info(folder).model);
  if (!fs::exists(fs::path(folder) / "config.json")) {
    config_fail("--load {}: {}", folder,
                fs::is_directory(folder)
                    ? "it holds neither a checkpoint (latest) nor a Hugging Face model (config.json)"
                    : "there is no such folder");
  }
  return config_from_huggingface(folder);
}

void load_weights(const std::string& folder, Lane& lane, Engine& engine) {
  const bool part = engine.part_of_model();
  if (has_checkpoint(folder)) {
    const CheckpointReader reader(folder);
    load_weights(lane, reader, engine.checkpoint_parts(), part);
  } else {
    const HuggingFaceWeights weights(folder);
    load_weights(lane, weights, engine.checkpoint_parts(), part);
  }
  if (engine.optimizer() != nullptr) engine.publish();
}

namespace {

// --load and --save name one folder: the run goes on with what it has saved.
bool goes_on(const CheckpointConfig& checkpoint) {
  const auto folder = [](const std::string& path) { return (fs::path(path) / "").lexically_normal(); };
  return !checkpoint.save.empty() && folder(checkpoint.load) == folder(checkpoint.save);
}

}  // namespace

namespace {

// How experts are balanced and reached belongs to the run, not to the weights. `given`: only what differs
// from the default.
void take_values_of_run(const MoeConfig& run, MoeConfig& to, bool given) {
  const MoeConfig defaults;
  const auto take = [&](auto MoeConfig::*field) {
    if (!given || run.*field != defaults.*field) to.*field = run.*field;
  };
  take(&MoeConfig::bias_update_rate);
  take(&MoeConfig::router_dtype);
  take(&MoeConfig::load_balancing);
  take(&MoeConfig::aux_loss_coeff);
  take(&MoeConfig::z_loss_coeff);
  take(&MoeConfig::expert_capacity_factor);
  take(&MoeConfig::token_drop_policy);
  take(&MoeConfig::pad_to_capacity);
  take(&MoeConfig::dispatcher);
}

}  // namespace

void use_loaded_model(TrainConfig& config) {
  // A run that starts with --load and --save on the same, still empty folder begins from scratch.
  if (goes_on(config.checkpoint) && !has_checkpoint(config.checkpoint.load)) {
    log_info("{} holds no checkpoint yet: the run begins from scratch", config.checkpoint.load);
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
    take_values_of_run(asked.moe, same.moe, false);
    if (asked != same) {
      config_fail(
          "the model options describe another model than --load {}: {}; leave them out, or load another "
          "folder",
          config.checkpoint.load,
          differences_of(Json::parse(weft::to_json(asked)), Json::parse(weft::to_json(same)), "loaded"));
    }
    config.model = asked;
  } else {
    const MoeConfig asked = config.model.moe;
    config.model = loaded;
    if (loaded.moe.num_experts > 0) take_values_of_run(asked, config.model.moe, true);
  }
}

Progress start_run(const TrainConfig& config, Lane& lane, Engine& engine) {
  const CheckpointConfig& c = config.checkpoint;
  if (c.load.empty()) {
    engine.initialize();
    return {};
  }
  const std::optional<Json> state = continued_state(config);
  if (!state) {
    load_weights(c.load, lane, engine);
    return {};
  }
  const CheckpointReader reader(c.load);
  load_checkpoint(lane, reader, engine.checkpoint_parts(),
                  {.optimizer_state = !c.no_load_optim, .part_of_model = engine.part_of_model()});
  engine.publish();
  restore_scaler(*state, engine.loss_scaler());
  return progress_of(reader.info(), *state);
}

std::vector<std::string> notes_of_load(const TrainConfig& config) {
  if (!continued_state(config) || config.checkpoint.no_load_optim) return {};
  const CheckpointInfo info = read_checkpoint_info(config.checkpoint.load);
  if (info.states.empty()) return {};  // refused
  const ModelSpec spec{.freeze = config.training.freeze};
  std::int64_t left = 0, zero = 0;
  for (const CheckpointTensor& tensor : info.tensors) {
    if (tensor.kind != kWeightKind) continue;
    const bool frozen = is_frozen(spec, tensor.name),
               has_state = info.find(info.states.front(), tensor.name) != nullptr;
    if (frozen && has_state) ++left;
    if (!frozen && !has_state) ++zero;
  }
  std::vector<std::string> notes;
  if (left > 0) {
    notes.push_back(fmt::format("{}: optimizer state of {} frozen tensors is not loaded (--freeze)",
                                info.folder.string(), left));
  }
  if (zero > 0) {
    notes.push_back(fmt::format(
        "{}: {} tensors were frozen in the run that wrote it and have no optimizer state there: theirs ({}) "
        "starts at zero",
        info.folder.string(), zero, fmt::join(info.states, ", ")));
  }
  return notes;
}

RunSchedule schedule_of_run(const TrainConfig& config) {
  RunSchedule schedule = RunSchedule::from(config);
  const std::optional<Json> state = continued_state(config);
  if (!state) return schedule;
  check_seed(*state, config);
  const Json& kept = state->at("schedule");
  const Json asked = to_json(in_effect(schedule));
  RunSchedule before = schedule;
  from_json(kept, before);
  const Json loaded = to_json(in_effect(before));
  if (loaded == asked || config.checkpoint.override_opt_param_scheduler) return schedule;
  if (config.checkpoint.use_checkpoint_opt_param_scheduler) {
    from_json(kept, schedule);
    return schedule;
  }
  Json given = to_json(schedule);  // said as it was given
  for (const auto& [name, value] : asked.items()) {
    if (value == loaded.at(name)) given.erase(name);
  }
  config_fail(
      "the learning-rate schedule differs from the one in --load {}: {}; say --override-opt-param-scheduler "
      "to "
      "follow the new one or --use-checkpoint-opt-param-scheduler to keep the old one",
      config.checkpoint.load, differences_of(given, kept, "checkpoint"));
}

std::string save_run(const TrainConfig& config, const RunData& data, const RunSchedule& schedule, Lane& lane,
                     const Groups& groups, Engine& engine, const Progress& progress) {
  CheckpointMeta meta{.iteration = progress.iteration,
                      .model = weft::to_json(config.model),
                      .trainer = trainer_state(config, schedule, progress, engine.loss_scaler())};
  if (!data.tokenizer_json.empty()) meta.extra_files["tokenizer.json"] = data.tokenizer_json;
  return save_checkpoint(
             lane, {groups.world(), groups.tp(), groups.pp()}, engine.checkpoint_parts(), meta,
             config.checkpoint.save,
             {.optimizer_state = !config.checkpoint.no_save_optim, .keep_last = config.checkpoint.keep_last})
      .string();
}

SaveGuard prepare_save_folder(const TrainConfig& config) {
  const std::string& save = config.checkpoint.save;
  if (save.empty()) return {};
  if (has_checkpoint(save) && !goes_on(config.checkpoint)) {
    config_fail(
        "--save {}: it holds the checkpoints of another run, which would be overwritten. Go on with that run "
        "by --load "
        "{}, or save elsewhere",
        save, save);
  }
  return {std::make_shared<SaveFolderLock>(save)};
}

}  // namespace weft
