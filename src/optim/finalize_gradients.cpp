#include "optim/finalize_gradients.hpp"

#include "ops/elementwise.hpp"

namespace weft {
namespace {

// One all-reduce for many small gradients, through a copy that puts them side by side.
void sum_together(Lane& lane, Communicator& group, const std::vector<Tensor>& gradients) {
  std::int64_t elems = 0;
  for (const Tensor& gradient : gradients) elems += gradient.elems();
  if (elems == 0) return;
  const Tensor all = lane.alloc(gradients.front().dtype(), {elems}, "partial gradients");
  const auto each = [&](const auto& body) {
    std::int64_t begin = 0;
    for (const Tensor& gradient : gradients) {
      body(gradient, all.slice(begin, gradient.elems()));
      begin += gradient.elems();
    }
  };
  each([&](const Tensor& gradient, const Tensor& copy) { ops::copy(lane, gradient, copy); });
  group.all_reduce(lane, all).wait(lane);
  each([&](const Tensor& gradient, const Tensor& copy) { ops::copy(lane, copy, gradient); });
}

}  // namespace

void finalize_gradients(Lane& lane, ParamBuffer& buffer, const FinalizeGroups& groups) {
  const TraceScope traced(lane.tools, "finalize gradients");
  buffer.finish_step();

  std::vector<Tensor> whole, replicated, embeddings;
  for (const ParamBuffer::Slot& slot : buffer.slots()) {
    const Param& param = *slot.param;
    for (const LogicalTensor& part : param.parts()) {
      const Tensor gradient = buffer.owned_gradient(param, part.local_row, part.local_shape()[0]);
      if (gradient.elems() == 0) continue;
      if (part.partial_gradient) (part.cut < 0 ? whole : replicated).push_back(gradient);
    }
    if (param.traits().own_bucket) {
      embeddings.push_back(buffer.owned_gradient(param, 0, param.local_shape()[0]));
    }
  }
  sum_together(lane, groups.tp, whole);
  if (groups.kv_replicas != nullptr) sum_together(lane, *groups.kv_replicas, replicated);
  if (groups.embedding != nullptr) {
    for (const Tensor& gradient : embeddings) groups.embedding->all_reduce(lane, gradient).wait(lane);
  }
}

}  // namespace weft
