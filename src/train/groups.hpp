// Groups: the communicators of one rank, by what they are for.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "mesh/mesh.hpp"
#include "model/stage_split.hpp"
#include "pipeline/schedules.hpp"

namespace weft {

// How a model and a batch are cut over ranks. Plain values, the same on every rank.
struct Layout {
  MeshSizes mesh;
  PipelineShape pipeline;          // ranks and chunks; the number of microbatches is a step's
  std::vector<StageRange> stages;  // of the whole model, in order
  int kv_replicas = 1;             // neighbouring tensor-parallel ranks that share a key/value group
  int head_exchange = 0;           // neighbouring context-parallel ranks of kA2aP2p; 0: no layer has it
  bool tied = false;               // first and last stage hold the same embeddings
  bool experts = false;            // some layer has experts

  int world() const { return mesh.tp * mesh.cp * mesh.dp * mesh.pp; }
  // Of one rank's chunks, in order.
  std::vector<StageRange> stages_of(int pp_rank) const;
};

// The groups of the expert grid.
struct ExpertGroups {
  std::unique_ptr<Communicator> etp_ep;  // share out the experts of a layer, expert-tensor-parallel first
  std::unique_ptr<Communicator> etp;     // hold the other parts of the same experts
  std::unique_ptr<Communicator> edp;     // hold the same experts
  std::unique_ptr<Communicator> model;   // hold all experts of the model once
  std::unique_ptr<Communicator> tp_cp;   // of the dense grid: have the tokens of one microbatch
};

class Groups {
 public:
  // Splits the world. Collective.
  Groups(Communicator& world, const Layout& layout);
  // The groups of one rank of a planned world, for a meta lane. `messages`: see planned_communicator.
  static Groups planned(const Layout& layout, int rank, PlannedMessages* messages = nullptr);

  const Mesh& mesh() const { return mesh_; }
  Communicator& world() const { return *world_; }
  // The ranks that hold the same weights, each for other tokens: data and context parallel together.
  Communicator& dp_cp() const { return *dp_cp_; }
  Communicator& cp() const { return *cp_; }
  Communicator& tp() const { return *tp_; }
  Communicator& pp() const { return *pp_; }
  // Tensor- and pipeline-parallel ranks together: one copy of the model.
  Communicator& model() const { return *model_; }
  // Null where the model has no experts.
  const ExpertGroups* experts() const { return experts_.get(); }
  // Null where this rank is not in one.
  Communicator* embedding() const { return embedding_.get(); }
  Communicator* kv_replicas() const { return kv_replicas_.get(); }
  // See ContextParallel; null where ranks do not exchange heads in groups.
  Communicator* a2a() const { return a2a_.get(); }
  Communicator* p2p() const { return p2p_.get(); }
  // By channel_of(); null where this rank is at neither end.
  std::vector<Communicator*> channels() const;

 private:
  // Makes a group: the ranks of this rank's colour in `key` order; called in the same order on all ranks.
  class Maker;
  Groups(const Mesh& mesh, Communicator* world, std::unique_ptr<Communicator> own_world, const Layout& layout,
         PlannedMessages* messages);

  Mesh mesh_;
  std::unique_ptr<Communicator> own_world_;  // of a plan
  Communicator* world_;
  std::unique_ptr<Communicator> dp_cp_, tp_, cp_, pp_, model_, embedding_, kv_replicas_, a2a_, p2p_;
  std::unique_ptr<ExpertGroups> experts_;
  std::vector<std::unique_ptr<Communicator>> channels_;
};

}  // namespace weft
