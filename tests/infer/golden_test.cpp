// Against transformers: greedy tokens exactly, their logits within 1e-4.
#include <gtest/gtest.h>

#include "infer/generator.hpp"
#include "interop/huggingface.hpp"
#include "io/safetensors.hpp"

namespace weft {
namespace {

using Tokens = GenerateRequest::Tokens;

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, GreedyTokensAndLogits) {
  const std::filesystem::path folder =
      std::filesystem::path(WEFT_SOURCE_DIR) / "tests/golden/models" / GetParam();
  const HuggingFaceReader reader(folder);
  const SafetensorsFile file(folder / "tensors.safetensors");
  const Tensor prompts = file.get("gen.prompt"), tokens = file.get("gen.tokens"),
               logits = file.get("gen.step_logits");
  const auto rows = static_cast<std::size_t>(prompts.dim(0));
  const auto columns = static_cast<std::size_t>(prompts.dim(1)),
             total = static_cast<std::size_t>(tokens.dim(1));
  const auto vocab = static_cast<std::size_t>(reader.config().vocab_size);
  GenerateRequest request{.prompts = {},
                          .max_new_tokens = static_cast<std::int64_t>(total - columns),
                          .sampling = {.temperature = 0}};
  const auto* p = prompts.data<std::int64_t>();
  for (std::size_t row = 0; row < rows; ++row)
    request.prompts.emplace_back(p + row * columns, p + (row + 1) * columns);

  Workers workers(1);
  const auto arena = Arena::host(
      generation_memory(DeviceKind::kCpu, workers, reader.config(), DType::kF32, 0, 1, {&request, 1}).arena);
  Lane lane{*arena, workers, {}};
  const auto tp = self_communicator("tp");
  Generator generator(lane, *tp, reader.config(), DType::kF32, request.positions());
  for (const ParamBuffer::Slot& slot : generator.weights().slots()) {
    for (const LogicalTensor& part : slot.param->parts()) {
      reader.read(part, slot.param->part_of(slot.param->weight(), part));
    }
  }
  std::vector<std::vector<std::vector<double>>> steps(rows);
  const std::vector<Tokens> out = generator.generate(
      request, [&](const GeneratedToken& t) { steps[t.row].emplace_back(t.logits.begin(), t.logits.end()); });
  const auto* t = tokens.data<std::int64_t>();
  const float* l = logits.data<float>();
  for (std::size_t row = 0; row < rows; ++row) {
    EXPECT_EQ(out[row], Tokens(t + row * total, t + (row + 1) * total));
    for (std::size_t step = 0; step < total - columns; ++step) {
      const float* expected = l + (row * (total - columns) + step) * vocab;
      for (std::size_t i = 0; i < vocab; ++i) ASSERT_NEAR(steps[row][step][i], expected[i], 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         testing::Values("gpt2", "llama", "llama3_rope_tied", "mistral_sliding", "qwen3"),
                         [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace weft
