// Hugging Face model folders: config.json and safetensors files of the GPT-2 and Llama families.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "interop/tensor_map.hpp"
#include "model/config.hpp"
#include "nn/param.hpp"

namespace weft {

// The folder's config.json as a ModelConfig, in either spelling (transformers 5: rope_parameters, dtype; 4:
// rope_theta, rope_scaling, torch_dtype). A field that changes the mathematics is used or, when ModelConfig
// cannot say it, refused by name and value: one ConfigError lists all of them. Fields that nobody knows are
// named in one warning line.
ModelConfig config_from_huggingface(const std::filesystem::path& folder);

// The text of a config.json that both transformers 4 and 5 read. `source`, if not empty, is the text of a
// config.json whose other fields (token ids, ...) are kept. ConfigError, naming every option in the way, when
// no supported family can express the model. Dropout of hidden states has no field in the Llama family and is
// not written there.
std::string config_to_huggingface(const ModelConfig& config, DType dtype, const std::string& source = {});

// Why no supported family can express the model, option by option; empty: one can.
std::vector<std::string> huggingface_obstacles(const ModelConfig& config);

// The names and layouts of the family that expresses the model: foreign() lists them in file order. GPT-2
// stores linear weights [in, out] and q, k, v fused. Errors as config_to_huggingface.
TensorMap huggingface_map(const ModelConfig& config);

// Ids that end a text: eos_token_id of generation_config.json, else of config.json; empty when neither says.
std::vector<std::int64_t> huggingface_end_tokens(const std::filesystem::path& folder);

// Reads slices of a model's tensors. Files are mapped: only what is read comes into memory.
class HuggingFaceReader {
 public:
  // Checks everything before the first read: one ConfigError lists missing shard files, missing tensors,
  // wrong shapes, types that are not floating, and an output layer that contradicts tie_word_embeddings.
  // Tensors that the model does not have are named in one warning line.
  explicit HuggingFaceReader(const std::filesystem::path& folder);
  ~HuggingFaceReader();
  HuggingFaceReader(HuggingFaceReader&&) noexcept;

  const ModelConfig& config() const;
  const TensorMap& map() const;
  // Stored type of the word embeddings.
  DType dtype() const;

  // A range of a canonical tensor of shape `global`, converted to the type of `destination` (host memory of
  // the range's shape). ConfigError when the model has no such tensor or it has another shape. Safe from
  // several threads.
  void read(const std::string& canonical, const Shape& global, const TensorRange& range,
            const Tensor& destination) const;
  // What one rank holds of it; `destination` has part.local_shape(), and what is padding is set to zero.
  void read(const LogicalTensor& part, const Tensor& destination) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct HuggingFaceExport {
  DType dtype = DType::kF32;
  std::int64_t shard_bytes = 5'000'000'000;  // files are cut before they pass this size
  // A folder with tokenizer files and generation_config.json to copy along, and a config.json whose fields
  // that say nothing about the mathematics are kept. Empty: none.
  std::filesystem::path source;
};

// Writes a model folder tensor by tensor. config.json is written last, by commit(): without it a folder is
// unfinished.
class HuggingFaceWriter {
 public:
  // ConfigError when the folder already holds a model.
  HuggingFaceWriter(std::filesystem::path folder, const ModelConfig& config, HuggingFaceExport options = {});
  ~HuggingFaceWriter();
  HuggingFaceWriter(const HuggingFaceWriter&) = delete;
  HuggingFaceWriter& operator=(const HuggingFaceWriter&) = delete;

  // The canonical tensors in the order in which write() takes them.
  std::vector<std::string> order() const;
  // A whole canonical tensor: host memory, any floating type.
  void write(const std::string& canonical, const Tensor& full);
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft
