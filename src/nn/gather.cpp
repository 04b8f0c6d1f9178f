#include "nn/gather.hpp"

#include <algorithm>

#include "ops/elementwise.hpp"

namespace weft {

Tensor gather_whole(Lane& lane, Communicator& tp, const LogicalTensor& part, const Tensor& local) {
  const Tensor own = lane.alloc(local.dtype(), local.shape(), "gathered tensor");
  ops::copy(lane, local, own);
  if (part.cut < 0) return own;
  const Tensor all = tp.all_gather(lane, own).wait(lane);
  const Tensor whole = lane.alloc(local.dtype(), part.global, "gathered tensor");
  for (int rank = 0; rank < tp.size(); rank += part.replicas) {
    const std::int64_t begin = rank / part.replicas * part.count;
    const std::int64_t count = std::clamp<std::int64_t>(part.global[part.cut] - begin, 0, part.count);
    if (count == 0) continue;
    const Tensor from = all.slice(rank * local.dim(0), local.dim(0));
    if (part.cut == 0) {
      ops::copy(lane, from.slice(0, count), whole.slice(begin, count));
    } else {
      ops::copy(lane, from.slice_columns(0, count), whole.slice_columns(begin, count));
    }
  }
  return whole;
}

}  // namespace weft
