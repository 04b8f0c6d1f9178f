#include "train/groups.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "core/check.hpp"

namespace weft {

std::vector<StageRange> Layout::stages_of(int pp_rank) const {
  WEFT_CHECK(static_cast<int>(stages.size()) == pipeline.stages(), "a layout of {} stages describes {}",
             pipeline.stages(), stages.size());
  std::vector<StageRange> mine;
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
    mine.push_back(stages[static_cast<std::size_t>(stage_of(pipeline, pp_rank, chunk))]);
  }
  return mine;
}

// Splits a real world, or plans what the split would give.
class Groups::Maker {
 public:
  Maker(const Mesh& mesh, Communicator* world, PlannedMessages* messages)
      : mesh_(mesh), world_(world), messages_(messages) {}

  std::unique_ptr<Communicator> along(const std::vector<Axis>& axes, const char* name) const {
    return of(mesh_.group(axes), name);
  }

  // The group of these ranks, this one among them, or no group for a rank that is not.
  std::unique_ptr<Communicator> of(const std::vector<int>& ranks, const std::string& name) const {
    const auto place = std::find(ranks.begin(), ranks.end(), mesh_.rank());
    const bool member = place != ranks.end();
    const int index = static_cast<int>(place - ranks.begin());
    if (world_ != nullptr) return world_->split(member ? ranks.front() : -1, index, name);
    return member ? planned_communicator(name, index, static_cast<int>(ranks.size()), messages_) : nullptr;
  }

 private:
  const Mesh& mesh_;
  Communicator* world_;
  PlannedMessages* messages_;
};

Groups::Groups(Communicator& world, const Layout& layout)
    : Groups(Mesh(layout.mesh, world.rank()), &world, nullptr, layout, nullptr) {}

Groups Groups::planned(const Layout& layout, int rank, PlannedMessages* messages) {
  return {Mesh(layout.mesh, rank), nullptr, planned_communicator("world", rank, layout.world(), messages),
          layout, messages};
}

Groups::Groups(const Mesh& mesh, Communicator* world, std::unique_ptr<Communicator> own_world,
               const Layout& layout, PlannedMessages* messages)
    : mesh_(mesh), own_world_(std::move(own_world)), world_(world != nullptr ? world : own_world_.get()) {
  const Maker make(mesh_, world, messages);
  dp_cp_ = make.along({Axis::kDp, Axis::kCp}, layout.mesh.cp > 1 ? "dp-cp" : "dp");
  tp_ = make.along({Axis::kTp}, "tp");
  cp_ = make.along({Axis::kCp}, "cp");
  pp_ = make.along({Axis::kPp}, "pp");
  model_ = make.along({Axis::kTp, Axis::kPp}, "model");
  if (layout.experts) {
    experts_ = std::make_unique<ExpertGroups>(
        ExpertGroups{.etp_ep = make.along({Axis::kEtp, Axis::kEp}, "etp-ep"),
                     .etp = make.along({Axis::kEtp}, "etp"),
                     .edp = make.along({Axis::kEdp}, "edp"),
                     .model = make.along({Axis::kEtp, Axis::kEp, Axis::kPp}, "expert-model"),
                     .tp_cp = make.along({Axis::kTp, Axis::kCp}, "tp-cp")});
  }
  const std::vector<int> pipeline = mesh_.group({Axis::kPp});
  const auto rank_at = [&](int stage) {
    return pipeline[static_cast<std::size_t>(rank_of(layout.pipeline, stage))];
  };
  const int stages = layout.pipeline.stages();
  const int first = rank_at(0), last = rank_at(stages - 1);
  if (layout.tied && first != last) embedding_ = make.of({first, last}, "embedding");
  if (layout.kv_replicas > 1) {
    const std::vector<int> tp = mesh_.group({Axis::kTp});
    const auto begin = tp.begin() + mesh_.coordinate(Axis::kTp) / layout.kv_replicas * layout.kv_replicas;
    kv_replicas_ = make.of({begin, begin + layout.kv_replicas}, "kv_replicas");
  }
  if (layout.head_exchange > 0) {
    const std::vector<int> cp = mesh_.group({Axis::kCp});
    const int size = layout.head_exchange, me = mesh_.coordinate(Axis::kCp);
    std::vector<int> neighbours, others;
    for (int r = 0; r < static_cast<int>(cp.size()); ++r) {
      if (r / size == me / size) neighbours.push_back(cp[static_cast<std::size_t>(r)]);
      if (r % size == me % size) others.push_back(cp[static_cast<std::size_t>(r)]);
    }
    a2a_ = make.of(neighbours, "cp.a2a");
    p2p_ = make.of(others, "cp.p2p");
  }
  for (int edge = 0; edge + 1 < stages; ++edge) {
    for (const bool gradient : {false, true}) {
      const int from = rank_at(edge), to = rank_at(edge + 1);
      WEFT_CHECK(static_cast<int>(channels_.size()) == channel_of(edge, gradient), "channel {} of edge {}",
                 channels_.size(), edge);
      channels_.push_back(
          from == to ? nullptr
                     : make.of({from, to}, fmt::format("pp.{}.{}-{}", gradient ? "gradient" : "activation",
                                                       edge, edge + 1)));
    }
  }
}

std::vector<Communicator*> Groups::channels() const {
  std::vector<Communicator*> all;
  for (const auto& channel : channels_) all.push_back(channel.get());
  return all;
}

}  // namespace weft
