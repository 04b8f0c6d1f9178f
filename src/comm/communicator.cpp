#include "comm/communicator.hpp"

namespace weft {

Async<Tensor> Communicator::all_gather(Lane& lane, const Tensor& shard) {
  if (size() == 1) return Async<Tensor>(shard);
  WEFT_CHECK(shard.defined() && shard.rank() > 0,
             "group '{}': all_gather needs a tensor with a first dimension", name());
  Shape shape = shard.shape();
  shape.set(0, size() * shard.dim(0));
  return all_gather_into(lane, shard, lane.alloc(shard.dtype(), shape, "all_gather"));
}

Async<Tensor> Communicator::reduce_scatter(Lane& lane, const Tensor& full) {
  if (size() == 1) return Async<Tensor>(full);
  WEFT_CHECK(full.defined() && full.rank() > 0 && full.dim(0) % size() == 0,
             "group '{}' of {} ranks: reduce_scatter of {}: its first dimension does not divide", name(),
             size(), full.defined() ? to_string(full.shape()) : "an undefined tensor");
  Shape shape = full.shape();
  shape.set(0, full.dim(0) / size());
  return reduce_scatter_into(lane, full, lane.alloc(full.dtype(), shape, "reduce_scatter"));
}

}  // namespace weft
