// Where a run's weights come from and where they go: checkpoints and Hugging Face folders, as a run sees
// them.
#pragma once

#include <memory>
#include <string>

#include "train/engine.hpp"
#include "train/run_data.hpp"
#include "train/schedule.hpp"

namespace weft {

// --load: the folder's model becomes config.model (a ConfigError where the options describe another one).
void use_loaded_model(TrainConfig& config);

// Initialises or loads the engine; where the run begins. Collective.
Progress start_run(const TrainConfig& config, Lane& lane, Engine& engine);

// What the frozen tensors of this run, or of the one that wrote --load, mean for optimizer state: a line
// each.
std::vector<std::string> notes_of_load(const TrainConfig& config);

// The schedule of a run: from its options; where it continues a checkpoint, a ConfigError when the two differ
// and no option says which one holds.
RunSchedule schedule_of_run(const TrainConfig& config);

// Writes a checkpoint; the folder written. Collective.
std::string save_run(const TrainConfig& config, const RunData& data, const RunSchedule& schedule, Lane& lane,
                     const Groups& groups, Engine& engine, const Progress& progress);

// Holds the lock on --save while a run lives. Made before memory is taken: a ConfigError when the folder
// cannot be written or another run holds it.
struct SaveGuard {
  std::shared_ptr<void> lock;
};
SaveGuard prepare_save_folder(const TrainConfig& config);

// The folder's model; a weft checkpoint or a Hugging Face folder.
ModelConfig model_config_of(const std::string& folder);
// Only the weights, of either kind, into the engine's master (or, without an optimizer, its weights).
// Collective.
void load_weights(const std::string& folder, Lane& lane, Engine& engine);

}  // namespace weft
