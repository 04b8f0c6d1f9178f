// A Hugging Face folder as a source of weights, like a checkpoint.
#pragma once

#include "interop/huggingface.hpp"
#include "io/weight_source.hpp"

namespace weft {

class HuggingFaceWeights final : public WeightSource {
 public:
  explicit HuggingFaceWeights(const std::filesystem::path& folder) : folder_(folder), reader_(folder) {}

  const HuggingFaceReader& reader() const { return reader_; }
  std::string description() const override { return folder_.string(); }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override { return reader_.map().contains(name); }
  Shape shape(const std::string& name) const override { return reader_.map().shape_of(name); }
  void read(Lane& lane, const std::string& name, int dim, std::int64_t begin, std::int64_t count,
            const Tensor& out) const override;

 private:
  std::filesystem::path folder_;
  HuggingFaceReader reader_;
};

}  // namespace weft
