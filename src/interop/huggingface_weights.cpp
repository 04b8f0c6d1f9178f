#include "interop/huggingface_weights.hpp"

namespace weft {

std::vector<std::string> HuggingFaceWeights::names() const {
  std::vector<std::string> names;
  for (const CanonicalTensor& tensor : reader_.map().canonical()) names.push_back(tensor.name);
  return names;
}

void HuggingFaceWeights::read(Lane&, const std::string& name, int dim, std::int64_t begin, std::int64_t count,
                              const Tensor& out) const {
  reader_.read(name, reader_.map().shape_of(name), {dim, begin, count}, out);
}

}  // namespace weft
