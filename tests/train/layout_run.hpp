// One training run of a tiny model on any layout, and everything about it that must not depend on the layout.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "support/rank.hpp"
#include "train/engine.hpp"

namespace weft::testing {

struct LayoutCase {
  std::string model =
      "llama";  // llama: grouped queries, rotary, untied. gpt2: tied, learned positions, dropout
  int tp = 1, pp = 1, dp = 1, cp = 1;
  ParallelConfig::Schedule schedule = ParallelConfig::Schedule::k1F1B;
  int chunks = 1;
  bool sequence_parallel = false;
  bool distributed = false;
  bool overlap = true;  // of gradient reduction, weight gathering and messages
  int accumulation = 1;
  bool ragged = false;            // masks differ from sample to sample; one sample has no target at all
  std::int64_t global_batch = 0;  // 0: accumulation · a number that every dp up to 4 divides
  std::int64_t only_target = -1;  // of the batch's tokens, in the order of samples: the only one with a label
  std::int64_t bucket = 0;
  DType dtype = DType::kF32;
  bool tied = false;  // in place of the model's own choice, with tied_given
  bool tied_given = false;
  std::int64_t layers = 4;
  std::int64_t groups = 12;  // llama: key/value groups of 12 heads
  std::int64_t heads = 12, hidden = 24, vocabulary = 41;
  std::string stages;  // a pipeline layout string
  int tensor_parallel_chunks = 1;
  RecomputeSpec recompute;
  bool fused = false;           // the spec family
  bool latent = false;          // latent attention in place of grouped queries
  bool head_norms = false;      // of queries and keys
  std::vector<MoeConfig> moe;   // of llama: one, or none
  bool gathers_tokens = false;  // the other way for tokens to experts
  int ep = 1, etp = 0;          // etp 0: as tp
  std::vector<std::string> freeze;
  std::int64_t unused_positions = 0;  // learned positions that no sequence reaches
  // How sequences are cut over the cp ranks, as the options say it: a method for all layers or one for each.
  std::vector<std::string> cp_methods{"p2p"};
  int head_exchange = 0;  // of a2a+p2p
  ParallelConfig::SequenceOrder order = ParallelConfig::SequenceOrder::kAuto;
  std::int64_t sequence = 12;
  std::int64_t window = 0;
  bool documents = false;             // two or three in a sequence: own positions, kept apart
  std::vector<std::int64_t> targets;  // positions of each sequence that have a label; empty: all
  std::int64_t micro_batch = 1;
  bool per_token_loss = true;
  bool dropout = true;  // of gpt2

  int ranks() const { return tp * pp * dp * cp; }
  std::string name() const;
};

// GoogleTest's name of a parameter.
inline void PrintTo(const LayoutCase& layout, std::ostream* out) {
  *out << layout.name();
}

// Sizes of latent attention in these models: a latent of each kind, values wider than keys without rotation.
inline LatentConfig small_latent() {
  return {.enabled = true,
          .q_lora_rank = 7,
          .kv_lora_rank = 5,
          .qk_head_dim = 3,
          .qk_pos_emb_head_dim = 2,
          .v_head_dim = 4};
}

struct LayoutResult {
  DType dtype = DType::kF32;
  std::vector<double> losses, norms;
  Gradients gradients;                           // of the first batch, over its target tokens
  Engine::LossSum first;                         // of that batch
  std::vector<Gradients> weights;                // at the start, and after each step
  std::vector<std::vector<ExpertLoad>> experts;  // of each step
  // What several ranks hold alike (over dp; whole tensors and shared key/value heads over tp; a tied weight
  // over stages) and does not have the same bits after some step; empty: nothing.
  std::string unlike;
};

// Where a test may stand between a run and its world.
struct RunHooks {
  // What the rank uses in place of `world`.
  std::function<std::unique_ptr<Communicator>(Communicator& world, const Layout& layout)> wrap;
  // Around what belongs to training, as against looking at its results: on this rank's wrapped world.
  std::function<void(Communicator& wrapped, bool training)> phase;
  std::function<void(Engine&)> made;               // before anything is done with it
  std::function<void(Engine&, int step)> stepped;  // after a step, its weights whole
  // Adds sample `id` in place of fill_row.
  std::function<void(std::int64_t id, const LayoutCase& layout, Batch& out)> fill;
  std::chrono::seconds timeout{60};  // of a collective
  bool gradients = true;             // asked for on their own before the first step
};

// The one-rank run that a case is held against, and its steps, made once.
LayoutCase one_rank_of(const LayoutCase& layout);
// A layout with every method and order of context parallelism that its heads allow.
std::vector<LayoutCase> with_every_cp_method(const LayoutCase& layout);
const LayoutResult& reference_of(const LayoutCase& layout, int steps = 3);

// Layout, model and length as a user would write them.
TrainConfig config_of(const LayoutCase& layout);
Layout layout_of(const LayoutCase& layout);
EngineOptions engine_options(const LayoutCase& layout);
// Adds sample `id` of a data set that every layout sees alike.
void fill_row(std::int64_t id, const LayoutCase& layout, Batch& out);
// `steps` SGD steps (no momentum) from the seed's weights. Runs on thread ranks.
LayoutResult run_layout(const LayoutCase& layout, int steps = 3, const RunHooks& hooks = {});
// One rank of such a run, in a world of layout.ranks() ranks of any kind. What is gathered is on rank 0.
LayoutResult run_layout_rank(const LayoutCase& layout, Communicator& world, int steps = 3,
                             const RunHooks& hooks = {});

// The worst ratio of a quantity to its tolerance; above 1 is a failure. `what` names it. Weights are held
// alike but for one unit in the last place for each step: a norm's weight of 1 is stored in steps of 1e-7,
// which may be a hundredth of what a step changes.
double worst_difference(const LayoutResult& a, const LayoutResult& b, double tolerance, std::string* what);
// Whether every number has the same bits, on all replicas.
bool same_bits(const LayoutResult& a, const LayoutResult& b, std::string* what);

}  // namespace weft::testing
