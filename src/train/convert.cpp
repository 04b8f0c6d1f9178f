#include "train/convert.hpp"

#include <filesystem>
#include <memory>

#include "checkpoint/checkpoint.hpp"
#include "interop/huggingface_weights.hpp"
#include "io/atomic_file.hpp"
#include "train/precision.hpp"
#include "train/run_checkpoint.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

// The source, and its tokenizer.json (empty: none).
struct Source {
  std::unique_ptr<WeightSource> weights;
  std::string tokenizer;
  DType dtype;
  bool is_checkpoint;
};

Source open_source(const std::string& folder) {
  if (has_checkpoint(folder)) {
    auto reader = std::make_unique<CheckpointReader>(folder);
    std::string tokenizer = reader->extra_file("tokenizer.json");
    return {std::move(reader), std::move(tokenizer), DType::kF32, true};
  }
  auto weights = std::make_unique<HuggingFaceWeights>(folder);
  const DType dtype = weights->reader().dtype();
  const fs::path path = fs::path(folder) / "tokenizer.json";
  return {std::move(weights), fs::exists(path) ? read_file(path) : "", dtype, false};
}

void to_huggingface(const ConvertOptions& options, const Source& source, const ModelConfig& model,
                    Lane& lane) {
  HuggingFaceExport form;
  form.dtype = options.dtype.empty() ? source.dtype : parse_dtype(options.dtype);
  if (!source.is_checkpoint) form.source = options.from;
  HuggingFaceWriter writer(options.to, model, form);
  for (const std::string& name : writer.order()) {
    const Shape shape = source.weights->shape(name);
    std::vector<float> values(static_cast<std::size_t>(shape.elems()));
    const Tensor full = Tensor::borrow(values.data(), DType::kF32, shape);
    source.weights->read(lane, name, -1, 0, 0, full);
    writer.write(name, full);
  }
  if (source.is_checkpoint && !source.tokenizer.empty()) {
    write_file(fs::path(options.to) / "tokenizer.json", source.tokenizer);
  }
  writer.commit();
}

}  // namespace

std::string run_convert(const ConvertOptions& options) {
  if (options.format != "hf" && options.format != "weft") {
    config_fail("--format {}: expected hf or weft", options.format);
  }
  const ModelConfig model = model_config_of(options.from);
  const Source source = open_source(options.from);
  // Tensors are read into memory of their own; the lane's arena only serves conversions of type.
  const std::unique_ptr<Arena> arena = Arena::host(std::size_t{1} << 26);
  Workers workers(1);
  Lane lane{*arena, workers, {}};
  if (options.format == "hf") {
    to_huggingface(options, source, model, lane);
    return options.to;
  }
  if (has_checkpoint(options.to))
    config_fail("--to {} already holds a checkpoint: name a new folder", options.to);
  const DType dtype = options.dtype.empty() ? DType::kF32 : parse_dtype(options.dtype);
  if (dtype != DType::kF32 && dtype != DType::kF64) {
    config_fail("--dtype {}: a weft checkpoint holds master weights, fp32 or fp64", options.dtype);
  }
  CheckpointMeta meta{.iteration = 0, .model = to_json(model)};
  if (!source.tokenizer.empty()) meta.extra_files["tokenizer.json"] = source.tokenizer;
  return write_weights(lane, *source.weights, meta, options.to, dtype).string();
}

}  // namespace weft
