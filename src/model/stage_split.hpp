// Which layers are on which pipeline stage, by Megatron's rules and option names. Pure arithmetic: nothing is
// built, and nothing is cut off. What cannot be split as asked is an error, never a shorter model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// What the user says about it. Without any of the options below, every stage gets the same number of layers.
struct StageSplit {
  std::int64_t num_layers = 0;
  std::int64_t ranks = 1;   // P
  std::int64_t chunks = 1;  // V: stages on a rank
  // zb-v: the second chunks lie on the ranks in reverse order, so that rank 0 has the first stage and the
  // last.
  bool v_shaped = false;

  // Layers of the first and last pipeline *rank*, over its chunks alike; 0: not given. The other ranks share
  // what is left alike.
  std::int64_t decoder_first_pipeline_num_layers = 0;
  std::int64_t decoder_last_pipeline_num_layers = 0;
  // The embedding (or output layer and loss) counts as one layer of its stage.
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  // Every stage written out, in the order of the model: "Et*3|(tt|)*29,L". E embedding, t layer, L output
  // layer and loss, | the next stage, x*n and (...)*n repeat, commas are decoration. Empty: not given.
  std::string pipeline_model_parallel_layout;

  std::int64_t stages() const { return ranks * chunks; }
  bool operator==(const StageSplit&) const = default;
};

struct StageRange {
  bool embedding = false;
  std::int64_t first_layer = 0;  // global number, from 0
  std::int64_t layers = 0;       // may be 0
  bool loss = false;             // final norm, output layer and loss
  bool operator==(const StageRange&) const = default;
};

// What is wrong with it, one line each, naming options, numbers and the fix; empty: fine.
std::vector<std::string> problems_of(const StageSplit& split);

// One range per stage, in the order of the model; their layers are 0 .. num_layers - 1. A ConfigError holds
// what problems_of() says.
std::vector<StageRange> split_stages(const StageSplit& split);

// Stages that a layout string writes out; 0: it cannot be read.
std::int64_t stages_of_layout(const std::string& layout);

// One line: "stages: 0 [embedding, layers 0-2], 1 [layer 3, loss]; 4 layers".
std::string to_string(const std::vector<StageRange>& stages);

}  // namespace weft
