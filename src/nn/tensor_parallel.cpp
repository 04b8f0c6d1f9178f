#include "nn/tensor_parallel.hpp"

namespace weft::nn {

Async<Tensor> ReplicatedBorder::spread(Lane&, const Tensor& x) const {
  return Async<Tensor>(x);
}

Async<Tensor> ReplicatedBorder::combine(Lane& lane, const Tensor& partial) const {
  return tp_.all_reduce(lane, partial);
}

Async<Tensor> SequenceParallelBorder::spread(Lane& lane, const Tensor& x) const {
  return tp_.all_gather(lane, x);
}

Async<Tensor> SequenceParallelBorder::combine(Lane& lane, const Tensor& partial) const {
  return tp_.reduce_scatter(lane, partial);
}

}  // namespace weft::nn
