// What the engine hands out whole: gradients, weights and logits, put together from the parts of all ranks.
// None of it is part of a step.
#include <algorithm>

#include "nn/gather.hpp"
#include "ops/elementwise.hpp"
#include "train/engine.hpp"

namespace weft {

void Engine::for_each_whole(bool gradients,
                            const std::function<void(const LogicalTensor&, const Tensor&)>& body) {
  flush();
  const Layout& layout = options_.layout;
  for (int pp = 0; pp < layout.mesh.pp; ++pp) {
    for (const StageRange& stage : layout.stages_of(pp)) {
      for (const LogicalTensor& tensor : logical_tensors(spec_, stage)) {
        if (gradients && (tensor.state || is_frozen(spec_, tensor.name))) continue;
        const Tensor whole = tensor.expert >= 0 ? whole_of_expert(tensor, pp, gradients)
                                                : whole_of_stage(tensor, pp, gradients);
        if (groups_.world().rank() == 0) body(tensor, whole);
      }
    }
  }
}

Tensor Engine::room_for_whole(const LogicalTensor& tensor, bool gradients) {
  const DType dtype = gradients || tensor.state ? accumulator_of(options_.dtype) : options_.dtype;
  return lane_.alloc(dtype, tensor.global, "gathered tensor");
}

Tensor Engine::local_piece(const LogicalTensor& tensor, Communicator& cut, bool gradients) {
  const auto [param, part] = find_part(tensor.name);
  const Tensor& all = gradients ? param->main_grad() : param->weight();
  return gather_whole(lane_, cut, *part, param->part_of(all, *part));
}

Tensor Engine::whole_of_stage(const LogicalTensor& tensor, int pp, bool gradients) {
  if (groups_.dp_cp().rank() != 0) return {};  // the first replica is enough
  Tensor whole;
  if (pp == groups_.mesh().coordinate(Axis::kPp)) {
    whole = local_piece(tensor, groups_.tp(), gradients);
  } else if (groups_.tp().rank() == 0) {
    whole = room_for_whole(tensor, gradients);
  }
  if (groups_.tp().rank() != 0) return {};
  return groups_.pp().broadcast(lane_, whole, pp).wait(lane_);
}

Tensor Engine::whole_of_expert(const LogicalTensor& tensor, int pp, bool gradients) {
  // Held by one expert-parallel rank of each expert grid; the grid of edp 0 tells all.
  const Mesh& mesh = groups_.mesh();
  const ExpertGroups& experts = *groups_.experts();
  if (experts.edp->rank() != 0) return {};
  const std::int64_t local = spec_.experts() / mesh.size(Axis::kEp);
  const int owner = static_cast<int>(tensor.expert / local), etp = mesh.size(Axis::kEtp);
  const bool mine = pp == mesh.coordinate(Axis::kPp) && owner == mesh.coordinate(Axis::kEp);
  const Tensor whole =
      mine ? local_piece(tensor, *experts.etp, gradients) : room_for_whole(tensor, gradients);
  // experts.model has expert-tensor-parallel ranks fastest, stages slowest.
  return experts.model->broadcast(lane_, whole, (pp * mesh.size(Axis::kEp) + owner) * etp).wait(lane_);
}

std::pair<const Param*, const LogicalTensor*> Engine::find_part(const std::string& name) const {
  for (const auto& param : params_.all()) {
    if (param->owner() != nullptr || param->traits().copy) continue;
    for (const LogicalTensor& part : param->parts()) {
      if (part.name == name) return {param.get(), &part};
    }
  }
  fail("no parameter of this rank holds {}", name);
}

void Engine::for_each_gradient(const std::function<void(const LogicalTensor&, const Tensor&)>& body) {
  for_each_whole(true, body);
}

void Engine::for_each_weight(const std::function<void(const LogicalTensor&, const Tensor&)>& body) {
  for_each_whole(false, body);
}

Tensor Engine::local_logits(const Batch& batch) {
  const std::vector<StageRange> stages = options_.layout.stages_of(groups_.mesh().coordinate(Axis::kPp));
  Tensor local;
  run_forward(1, [&](std::size_t chunk, int, const Tensor& received) {
    Microbatch mb = make_microbatch(batch, 0, false);
    Tensor out = evaluation_models()[chunk]->look(lane_, received, mb);
    if (!stages[chunk].loss) return out;
    local = std::move(out);
    return Tensor();
  });
  return local;
}

Tensor Engine::whole_sequences(const Tensor& parts) {
  if (!feed_.cut()) return parts;
  const nn::SequenceCut& cut = *feed_.cut();
  const std::int64_t length = options_.sequence_length, cp = cut.ranks, dp = groups_.mesh().size(Axis::kDp);
  Tensor whole = lane_.alloc(parts.dtype(), {dp * length, parts.dim(1), parts.dim(2)}, "gathered logits");
  for (std::int64_t member = 0; member < dp * cp; ++member) {  // context-parallel ranks are neighbours
    const auto rank = static_cast<int>(member % cp);
    for (int i = 0; i < cut.chunks(); ++i) {
      const std::int64_t start = cut.start(rank, i),
                         rows = std::clamp<std::int64_t>(length - start, 0, cut.chunk);
      if (rows == 0) continue;
      ops::copy(lane_, parts.slice(member * cut.rows() + i * cut.chunk, rows),
                whole.slice(member / cp * length + start, rows));
    }
  }
  return whole;
}

Tensor Engine::logits(const Batch& batch) {
  flush();
  const Layout& layout = options_.layout;
  const std::int64_t dp = groups_.mesh().size(Axis::kDp);
  Tensor all;
  if (const Tensor local = local_logits(batch); local.defined()) {
    const std::int64_t rows = local.rows(), columns = local.columns();
    const Tensor gathered = groups_.tp().all_gather(lane_, local.view({rows, columns})).wait(lane_);
    const Tensor mine = lane_.alloc(accumulator_of(options_.dtype),
                                    {local.dim(0), local.dim(1), spec_.vocab_size}, "gathered logits");
    for (std::int64_t r = 0; r < groups_.tp().size(); ++r) {
      const std::int64_t width = std::clamp<std::int64_t>(spec_.vocab_size - r * columns, 0, columns);
      if (width == 0) continue;
      ops::copy(lane_, gathered.slice(r * rows, rows).slice_columns(0, width),
                mine.view({rows, spec_.vocab_size}).slice_columns(r * columns, width));
    }
    all = whole_sequences(groups_.dp_cp().all_gather(lane_, mine).wait(lane_));
  }
  if (groups_.dp_cp().rank() != 0 || groups_.tp().rank() != 0) return {};
  if (!all.defined()) {
    all = lane_.alloc(accumulator_of(options_.dtype),
                      {dp * options_.sequence_length, options_.micro_batch, spec_.vocab_size},
                      "gathered logits");
  }
  groups_.pp().broadcast(lane_, all, rank_of(layout.pipeline, layout.pipeline.stages() - 1)).wait(lane_);
  return groups_.world().rank() == 0 ? all : Tensor();
}
}  // namespace weft
