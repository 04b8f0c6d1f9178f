// WeightSource: where the weights of a model come from (a checkpoint of any layout, another program's files).
// One interface, so that training, scoring and generation load from either in the same way.
#pragma once

#include <string>
#include <vector>

#include "core/lane.hpp"
#include "core/tensor.hpp"

namespace weft {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // For messages: the folder.
  virtual std::string description() const = 0;
  // Every canonical tensor the source has ("decoder.layers.3.mlp.linear_fc2.weight").
  virtual std::vector<std::string> names() const = 0;
  virtual bool contains(const std::string& name) const = 0;
  // Global shape, vocabulary unpadded. ConfigError for an unknown name.
  virtual Shape shape(const std::string& name) const = 0;
  // Indices [begin, begin + count) of dim `dim` (the first or the last; −1: the whole tensor, begin and count
  // unused), converted to the type of `out`, which has the range's shape and may be strided. ConfigError for
  // an unknown name and for a damaged file. Safe from several threads, each with its own lane.
  virtual void read(Lane& lane, const std::string& name, int dim, std::int64_t begin, std::int64_t count,
                    const Tensor& out) const = 0;
};

}  // namespace weft
