// GptModel: one stage of the model, from its entry (embedding, or what the stage before sent) through its
// layers to its exit (loss, or what the next stage is sent). A model that is not cut is one stage with both
// ends.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/spec.hpp"
#include "model/stage_ends.hpp"
#include "model/stage_split.hpp"
#include "nn/chunked_border.hpp"
#include "nn/module.hpp"
#include "nn/sequence_cut.hpp"
#include "ops/rope.hpp"

namespace weft {

class GptModel {
 public:
  // What the parts refer to, made first and kept alive with them.
  struct Shared {
    std::unique_ptr<nn::TensorParallelBorder> border;
    std::unique_ptr<nn::TensorParallelBorder> none;  // of what stands outside the tensor-parallel regions
    std::unique_ptr<nn::ChunkedBorder> chunked;
    std::optional<ops::RopeTable> rotary;
  };
  struct Parts {
    std::unique_ptr<Shared> shared;
    std::unique_ptr<StageEntry> entry;
    std::int64_t first_layer = 0;  // number of layers.front() in the whole model
    std::vector<std::unique_ptr<nn::Layer>> layers;
    std::unique_ptr<StageExit> exit;
  };
  explicit GptModel(Parts parts) : parts_(std::move(parts)) {}

  // `received` and the result: activations between stages [s, b, h] (under sequence parallel [s/tp, b, h]);
  // undefined where there is no other stage. The last stage sets mb.losses: the loss of each token, [s · b].
  Tensor forward(Lane& lane, const Tensor& received, Microbatch& mb) const;
  // Adds the gradient of mb.loss_scale · Σ losses to every parameter's main_grad, or defers it to mb.later;
  // `received` and the result: gradients between stages.
  Tensor backward(Lane& lane, const Tensor& received, Microbatch& mb) const;
  // forward without a loss: the last stage gives the logits of this rank's part of the vocabulary
  // [s, b, V_padded/tp].
  Tensor look(Lane& lane, const Tensor& received, Microbatch& mb) const;
  // The same for the last position only: [1, b, V_padded/tp] (generation; a model of one stage).
  Tensor last_logits(Lane& lane, Microbatch& mb) const;
  // Runs forward part by part and names the first one whose output has a NaN or infinity, what was received
  // included ("what it received"); empty: none.
  std::string first_nonfinite(Lane& lane, const Tensor& received, Microbatch& mb, Tensor* sent) const;

 private:
  Tensor through_layers(Lane& lane, const Tensor& received, Microbatch& mb) const;
  Parts parts_;
};

// The ranks that a sequence is cut over.
struct ContextParallel {
  Communicator& cp;
  nn::SequenceCut cut;
  // Of ContextMethod::kA2aP2p: neighbours of cp that exchange heads, and the ranks in the same place of each
  // such group.
  Communicator *a2a = nullptr, *p2p = nullptr;
};

// The ranks that have a part of a layer's experts, and those that have tokens of one microbatch.
struct ExpertParallel {
  Communicator& group;  // of etp · ep ranks, expert-tensor-parallel ones next to each other
  ExpertSizes sizes;
  Communicator& microbatch;  // tensor- and context-parallel ranks together
};

// Where build() puts things.
struct BuildContext {
  ParamSet& params;
  Communicator& tp;
  DType dtype;                      // of weights and activations
  std::int64_t positions;           // longest sequence that will be seen, or this rank's part of it (rows)
  std::optional<StageRange> stage;  // none: the whole model
  nn::WeightGate* gate = nullptr;   // null: weights are whole before a forward pass begins
  DrainPoint weight_grads = DrainPoint::kLinear;  // where the schedule runs them
  std::optional<ContextParallel> context;         // none: a rank has whole sequences
  // None: experts are cut as everything else is, over the tensor-parallel ranks.
  std::optional<ExpertParallel> experts;
  // [layers of the model, nn::RouterStatistics::columns] f64, where routers write what they have seen;
  // undefined: nowhere.
  Tensor router_statistics;
};

// The objects of a spec. The parameters get their memory later (data_parallel); tables are taken from the
// lane now. Stages that are built over one set share what they have in common (a tied model's embeddings).
std::unique_ptr<GptModel> build(const ModelSpec& spec, Lane& lane, const BuildContext& context);

// Every tensor that a stage owns, whole, in the order of the forward pass.
std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec, const StageRange& stage);

// Rows of the vocabulary on one tensor-parallel rank, padding included.
std::int64_t padded_vocab_per_rank(const ModelSpec& spec, int tensor_parallel_size);

}  // namespace weft
