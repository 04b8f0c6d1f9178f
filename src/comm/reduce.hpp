// The one reduction of every CPU backend: element by element, in the order of the inputs, in the accumulator
// type.
#pragma once

#include <vector>

#include "comm/communicator.hpp"
#include "comm/view.hpp"

namespace weft {

// outputs[j] = inputs[0] op inputs[1] op ... for every j, where (x0 op x1) op x2 ... is the order of
// evaluation. bf16 and f16 are summed in fp32 and rounded once; integers wrap. A maximum with a NaN is NaN.
// All views have the same size; an output may be the same memory as an input. The bits depend neither on
// strides nor on how the work is cut.
void reduce_in_order(DType dtype, ReduceOp op, const std::vector<View>& inputs,
                     const std::vector<View>& outputs);

}  // namespace weft
