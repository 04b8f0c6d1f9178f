#include "nn/sequence_cut.hpp"

#include <numeric>

namespace weft::nn {

std::int64_t SequenceCut::multiple(SequenceOrder order, int ranks, std::int64_t rows) {
  return ranks * (order == SequenceOrder::kZigzag ? std::lcm(std::int64_t{2}, rows) : rows);
}

}  // namespace weft::nn
