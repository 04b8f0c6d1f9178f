// Tensors in and out of Hugging Face folders.
#include <gtest/gtest.h>

#include "core/check.hpp"
#include "interop/huggingface.hpp"
#include "io/atomic_file.hpp"
#include "model_folder.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;
using test::Json;
using test::Stored;
using test::Tensors;

constexpr const char* kModels[] = {"gpt2", "llama", "llama3_rope_tied", "mistral_sliding", "qwen3"};
constexpr const char* kEmbedding = "embedding.word_embeddings.weight";

Stored read_whole(const HuggingFaceReader& reader, const std::string& name, DType dtype = DType::kF32) {
  Stored stored(dtype, reader.map().shape_of(name));
  reader.read(name, stored.shape, {}, stored.tensor());
  return stored;
}

void export_model(const HuggingFaceReader& reader, const fs::path& to, const HuggingFaceExport& options) {
  HuggingFaceWriter writer(to, reader.config(), options);
  for (const std::string& name : writer.order())
    writer.write(name, read_whole(reader, name, options.dtype).tensor());
  writer.commit();
}

std::string reader_problems(const fs::path& folder) {
  return test::problems_from([&] { HuggingFaceReader{folder}; });
}

void expect_names(const std::string& text, const std::vector<std::string>& names) {
  for (const std::string& name : names)
    EXPECT_NE(text.find(name), std::string::npos) << name << " in:\n" << text;
}

TEST(HuggingFaceFiles, ImportThenExportIsBitEqual) {
  for (const char* model : kModels) {
    const test::TempFolder folder;
    export_model(HuggingFaceReader(test::golden_model(model)), folder.path() / "out",
                 {.source = test::golden_model(model)});
    EXPECT_EQ(test::load_tensors(folder.path() / "out/model.safetensors"),
              test::load_tensors(test::golden_model(model) / "model.safetensors"))
        << model;
    EXPECT_EQ(HuggingFaceReader(folder.path() / "out").config(),
              HuggingFaceReader(test::golden_model(model)).config());
    EXPECT_EQ(read_file(folder.path() / "out/generation_config.json"),
              read_file(test::golden_model(model) / "generation_config.json"));
  }
}

TEST(HuggingFaceFiles, CanonicalTensorsAreTheRightOnes) {
  const HuggingFaceReader reader(test::golden_model("gpt2"));
  const Tensors file = test::load_tensors(test::golden_model("gpt2") / "model.safetensors");
  const Stored& fused = file.at("transformer.h.1.attn.c_attn.weight");  // [in 32, q|k|v 96]
  const char* names[] = {"linear_q", "linear_k", "linear_v"};
  for (int part = 0; part < 3; ++part) {
    const Stored weight =
        read_whole(reader, fmt::format("decoder.layers.1.self_attention.{}.weight", names[part]));
    const Stored bias =
        read_whole(reader, fmt::format("decoder.layers.1.self_attention.{}.bias", names[part]));
    ASSERT_EQ(weight.shape, (Shape{32, 32}));
    for (int out = 0; out < 32; ++out) {
      EXPECT_EQ(bias.tensor().data<float>()[out],
                file.at("transformer.h.1.attn.c_attn.bias").tensor().data<float>()[32 * part + out]);
      for (int in = 0; in < 32; ++in) {
        ASSERT_EQ(weight.tensor().data<float>()[out * 32 + in],
                  fused.tensor().data<float>()[in * 96 + 32 * part + out]);
      }
    }
  }
  const Stored up = read_whole(reader, "decoder.layers.0.mlp.linear_fc1.weight");
  EXPECT_EQ(up.shape, (Shape{128, 32}));
  EXPECT_EQ(up.tensor().data<float>()[5 * 32 + 3],
            file.at("transformer.h.0.mlp.c_fc.weight").tensor().data<float>()[3 * 128 + 5]);
  const HuggingFaceReader llama(test::golden_model("llama"));
  const Tensors llama_file = test::load_tensors(test::golden_model("llama") / "model.safetensors");
  EXPECT_EQ(read_whole(llama, "decoder.layers.1.mlp.linear_gate.weight"),
            llama_file.at("model.layers.1.mlp.gate_proj.weight"));
  EXPECT_EQ(read_whole(llama, "output_layer.weight"), llama_file.at("lm_head.weight"));
}

// Element (row, column) of a matrix, or element (row) of a vector.
float element(const Tensor& tensor, std::int64_t row, std::int64_t column) {
  return tensor.data<float>()[row * (tensor.rank() == 2 ? tensor.ld() : 1) + column];
}

// Reads the range into rows that lie apart, and compares with the whole tensor.
void expect_slice(const HuggingFaceReader& reader, const std::string& name, const Stored& whole,
                  const TensorRange& range) {
  const bool matrix = whole.shape.rank() == 2;
  const Stored memory(DType::kF32, matrix ? Shape{whole.shape[0], whole.shape[1] + 3} : whole.shape);
  Tensor destination = memory.tensor();
  if (matrix) destination = destination.slice_columns(0, range.dim == 1 ? range.count : whole.shape[1]);
  if (range.dim == 0) destination = destination.slice(0, range.count);
  reader.read(name, whole.shape, range, destination);
  for (std::int64_t r = 0; r < destination.dim(0); ++r) {
    for (std::int64_t c = 0; c < (matrix ? destination.dim(1) : 1); ++c) {
      const float expected = range.dim == 0 ? element(whole.tensor(), range.begin + r, c)
                                            : element(whole.tensor(), r, range.begin + c);
      ASSERT_EQ(element(destination, r, c), expected)
          << name << " dim " << range.dim << " [" << range.begin << ", +" << range.count << ")";
    }
  }
}

// Every canonical tensor, cut along each of its dims in unequal ranges.
TEST(HuggingFaceFiles, SlicesAreSlicesOfTheWhole) {
  for (const char* model : {"gpt2", "llama"}) {
    const HuggingFaceReader reader(test::golden_model(model));
    for (const CanonicalTensor& tensor : reader.map().canonical()) {
      const Stored whole = read_whole(reader, tensor.name);
      for (int dim = 0; dim < tensor.shape.rank(); ++dim) {
        const std::int64_t size = tensor.shape[dim], third = size / 3;
        expect_slice(reader, tensor.name, whole, {dim, 0, third});
        expect_slice(reader, tensor.name, whole, {dim, third, 1});
        expect_slice(reader, tensor.name, whole, {dim, third + 1, size - third - 1});
      }
    }
  }
}

TEST(HuggingFaceFiles, RanksPaddingIsZero) {
  const HuggingFaceReader reader(test::golden_model("gpt2"));
  const Stored whole = read_whole(reader, kEmbedding);  // [101, 32]
  LogicalTensor part;
  part.name = kEmbedding;
  part.global = whole.shape;
  part.cut = 0;
  part.count = 64;
  for (const std::int64_t begin : {0, 64, 128}) {
    part.begin = begin;
    const Stored local(DType::kF32, {64, 32});
    std::fill_n(local.tensor().data<float>(), local.shape.elems(), 7.0f);
    reader.read(part, local.tensor());
    for (std::int64_t i = 0; i < local.shape.elems(); ++i) {
      const std::int64_t global = begin * 32 + i;
      ASSERT_EQ(local.tensor().data<float>()[i],
                global < whole.shape.elems() ? whole.tensor().data<float>()[global] : 0.0f);
    }
  }
}

TEST(HuggingFaceFiles, TypesAreConverted) {
  const test::TempFolder folder;
  const HuggingFaceReader reader(test::golden_model("gpt2"));
  export_model(reader, folder.path() / "bf16", {.dtype = DType::kBF16});
  const HuggingFaceReader narrow(folder.path() / "bf16");
  EXPECT_EQ(narrow.dtype(), DType::kBF16);
  export_model(narrow, folder.path() / "f64", {.dtype = DType::kF64});
  const HuggingFaceReader wide(folder.path() / "f64");
  for (const CanonicalTensor& tensor : reader.map().canonical()) {
    const Stored exact = read_whole(reader, tensor.name), back = read_whole(wide, tensor.name, DType::kF64);
    for (std::int64_t i = 0; i < tensor.shape.elems(); ++i) {
      ASSERT_EQ(back.tensor().data<double>()[i], static_cast<float>(bf16(exact.tensor().data<float>()[i])));
    }
  }
}

TEST(HuggingFaceFiles, ShardsAndIndex) {
  for (const char* model : kModels) {
    const test::TempFolder folder;
    const fs::path out = folder.path() / "out";
    export_model(HuggingFaceReader(test::golden_model(model)), out, {.shard_bytes = 20'000});
    const Json index = test::load_json(out / "model.safetensors.index.json");
    Tensors all;
    std::size_t files = 0;
    std::uintmax_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(out)) {
      if (entry.path().extension() != ".safetensors") continue;
      ++files;
      for (auto& [name, stored] : test::load_tensors(entry.path())) {
        EXPECT_EQ(index["weight_map"][name], entry.path().filename().string());
        bytes += stored.tensor().bytes();
        all.emplace(name, std::move(stored));
      }
    }
    EXPECT_GT(files, 2u);
    EXPECT_EQ(index["weight_map"].size(), all.size());
    EXPECT_EQ(index["metadata"]["total_size"], bytes);
    EXPECT_EQ(all, test::load_tensors(test::golden_model(model) / "model.safetensors"));

    export_model(HuggingFaceReader(out), folder.path() / "again", {});
    EXPECT_EQ(test::load_tensors(folder.path() / "again/model.safetensors"), all);
  }
}

TEST(HuggingFaceFiles, MissingShardIsNamed) {
  const test::TempFolder folder;
  export_model(HuggingFaceReader(test::golden_model("llama")), folder.path() / "out",
               {.shard_bytes = 20'000});
  const fs::path index_file = folder.path() / "out/model.safetensors.index.json";
  Json index = test::load_json(index_file);
  const std::string file = index["weight_map"]["model.norm.weight"];
  fs::rename(folder.path() / "out" / file, folder.path() / "elsewhere");
  expect_names(reader_problems(folder.path() / "out"), {file, "model.norm.weight"});
  fs::rename(folder.path() / "elsewhere", folder.path() / "out" / file);

  // A tensor that is not where the index says, and an index that leads out of the folder.
  Json wrong = index;
  wrong["weight_map"]["model.norm.weight"] = index["weight_map"]["model.embed_tokens.weight"];
  test::save_json(index_file, wrong);
  expect_names(reader_problems(folder.path() / "out"), {"does not hold model.norm.weight"});
  wrong["weight_map"]["model.norm.weight"] = "../out/" + file;
  test::save_json(index_file, wrong);
  expect_names(reader_problems(folder.path() / "out"), {"model.norm.weight", "../out/"});
}

TEST(HuggingFaceFiles, TiedOutputLayer) {
  const test::TempFolder folder;
  const std::string head = "lm_head.weight", embedding = "model.embed_tokens.weight";
  // Absent, and present but equal.
  test::make_model(folder.path() / "b", "llama3_rope_tied", nullptr,
                   [&](Tensors& t) { t.emplace(head, t.at(embedding)); });
  EXPECT_TRUE(test::warnings_from([&] {
                const HuggingFaceReader reader(folder.path() / "b");
                EXPECT_FALSE(reader.map().contains("output_layer.weight"));
              }).empty());
  // Different.
  test::make_model(folder.path() / "c", "llama3_rope_tied", nullptr, [&](Tensors& t) {
    t.emplace(head, t.at(embedding));
    t.at(head).tensor().data<float>()[95 * 48 + 47] += 1;
  });
  expect_names(reader_problems(folder.path() / "c"), {head, embedding, "tie_word_embeddings true"});
  // Untied without one.
  test::make_model(folder.path() / "d", "llama", nullptr, [&](Tensors& t) { t.erase(head); });
  expect_names(reader_problems(folder.path() / "d"), {head, "missing", "tie_word_embeddings false"});
}

TEST(HuggingFaceFiles, MissingExtraAndMisshapenTensors) {
  const test::TempFolder folder;
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  test::make_model(folder.path() / "e", "llama", nullptr, [&](Tensors& t) { t.erase(up); });
  expect_names(reader_problems(folder.path() / "e"), {"missing", up});

  test::make_model(folder.path() / "f", "llama", nullptr, [&](Tensors& t) {
    t.emplace("model.layers.0.self_attn.q_norm.weight", Stored(DType::kF32, {8}));
    t.emplace("model.layers.0.self_attn.rotary_emb.inv_freq", Stored(DType::kF32, {4}));
  });
  const auto lines = test::warnings_from([&] { HuggingFaceReader{folder.path() / "f"}; });
  ASSERT_EQ(lines.size(), 1u);
  expect_names(lines[0], {"model.layers.0.self_attn.q_norm.weight"});
  EXPECT_EQ(lines[0].find("inv_freq"), std::string::npos);

  // All faults come together.
  test::make_model(folder.path() / "g", "llama", nullptr, [&](Tensors& t) {
    t.erase("model.norm.weight");
    t[up] = Stored(DType::kF32, {48, 72});
    t["lm_head.weight"] = Stored(DType::kI32, {96, 48});
  });
  expect_names(reader_problems(folder.path() / "g"),
               {up, "[48, 72]", "[72, 48]", "model.norm.weight", "lm_head.weight has type I32"});

  test::make_model(folder.path() / "h", "llama", [](Json& c) { c["num_hidden_layers"] = 2'000'000'000; });
  expect_names(reader_problems(folder.path() / "h"), {"2000000000 layers"});
  fs::remove(folder.path() / "e/model.safetensors");
  write_file(folder.path() / "e/pytorch_model.bin", "x");
  expect_names(reader_problems(folder.path() / "e"), {"model.safetensors", "pytorch_model.bin"});
}

// Files of the bare decoder: no prefix, and masks among the tensors, as in the first release of GPT-2.
TEST(HuggingFaceFiles, BareDecoder) {
  const test::TempFolder folder;
  const std::string prefix = "transformer.";
  test::make_model(folder.path() / "bare", "gpt2", nullptr, [&](Tensors& t) {
    Tensors bare;
    for (const auto& [name, stored] : t) bare.emplace(name.substr(prefix.size()), stored);
    bare.emplace("h.0.attn.bias", Stored(DType::kF32, {1, 1, 64, 64}));
    t = bare;
  });
  EXPECT_TRUE(test::warnings_from([&] {
                export_model(HuggingFaceReader(folder.path() / "bare"), folder.path() / "out", {});
              }).empty());
  EXPECT_EQ(test::load_tensors(folder.path() / "out/model.safetensors"),
            test::load_tensors(test::golden_model("gpt2") / "model.safetensors"));
}

TEST(HuggingFaceFiles, HeadSizeOfItsOwn) {
  const test::TempFolder folder;
  ModelConfig c = HuggingFaceReader(test::golden_model("llama")).config();
  c.hidden_size = 64;
  c.num_attention_heads = 4;
  c.num_query_groups = 2;
  c.kv_channels = 32;
  c.vocab_size = 97;
  c.tied = true;
  HuggingFaceWriter writer(folder.path() / "out", c);
  const TensorMap map = huggingface_map(c);
  for (const std::string& name : writer.order()) {
    const Stored random(DType::kF32, map.shape_of(name));
    for (std::int64_t i = 0; i < random.shape.elems(); ++i) {
      random.tensor().data<float>()[i] = static_cast<float>(normal(RandomKey{1}.with(name), i));
    }
    writer.write(name, random.tensor());
  }
  writer.commit();
  const Json config = test::load_json(folder.path() / "out/config.json");
  EXPECT_EQ(config["head_dim"], 32);
  EXPECT_EQ(config["vocab_size"], 97);
  const Tensors file = test::load_tensors(folder.path() / "out/model.safetensors");
  EXPECT_EQ(file.at("model.layers.0.self_attn.q_proj.weight").shape, (Shape{128, 64}));
  EXPECT_EQ(file.at("model.layers.0.self_attn.o_proj.weight").shape, (Shape{64, 128}));
  EXPECT_EQ(file.at("model.embed_tokens.weight").shape, (Shape{97, 64}));
  EXPECT_FALSE(file.contains("lm_head.weight"));
  EXPECT_EQ(HuggingFaceReader(folder.path() / "out").config(), c);
}

TEST(HuggingFaceFiles, AFinishedModelIsNotWrittenOver) {
  const test::TempFolder folder;
  const HuggingFaceReader reader(test::golden_model("llama"));
  {
    HuggingFaceWriter unfinished(folder.path() / "out", reader.config());
    const std::string first = unfinished.order()[0];
    unfinished.write(first, read_whole(reader, first).tensor());
  }
  EXPECT_FALSE(fs::exists(folder.path() / "out/config.json"));
  EXPECT_FALSE(fs::exists(folder.path() / "out/model.safetensors"));
  export_model(reader, folder.path() / "out", {});
  expect_names(test::problems_from([&] { export_model(reader, folder.path() / "out", {}); }),
               {"out/config.json"});
}

TEST(HuggingFaceFiles, CompanionsAreCopied) {
  const test::TempFolder folder;
  test::make_model(folder.path() / "in", "llama", nullptr);
  write_file(folder.path() / "in/tokenizer.json", "{\"version\": \"1.0\"}");
  export_model(HuggingFaceReader(folder.path() / "in"), folder.path() / "out",
               {.source = folder.path() / "in"});
  EXPECT_EQ(read_file(folder.path() / "out/tokenizer.json"), "{\"version\": \"1.0\"}");
  EXPECT_FALSE(fs::exists(folder.path() / "out/generation_config.json"));
}

TEST(HuggingFaceFiles, WrongRequestsAreNamed) {
  const HuggingFaceReader reader(test::golden_model("llama"));
  const Stored memory(DType::kF32, {97, 48});
  expect_names(test::problems_from([&] {
                 reader.read(kEmbedding, {97, 48}, {}, memory.tensor());
               }),
               {kEmbedding, "[96, 48]", "[97, 48]"});
  expect_names(test::problems_from([&] {
                 reader.read("embedding.position_embeddings.weight", {97, 48}, {}, memory.tensor());
               }),
               {"embedding.position_embeddings.weight"});
}

// Gradients under the files' names: the same assembling, without a folder.
TEST(HuggingFaceFiles, AssembleFollowsTheFilesOrder) {
  const HuggingFaceReader reader(test::golden_model("gpt2"));
  const Tensors file = test::load_tensors(test::golden_model("gpt2") / "model.safetensors");
  Stored current;
  Tensors out;
  std::vector<std::string> names;
  assemble(
      reader.map(), {},
      [&](const std::string& name) {
        current = read_whole(reader, name);
        return current.tensor();
      },
      [&](const ForeignTensor& foreign, const Tensor& tensor) {
        names.push_back(foreign.name);
        out.emplace(foreign.name, Stored(tensor));
      });
  EXPECT_EQ(out, file);
  ASSERT_EQ(names.size(), reader.map().foreign().size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(names[i], reader.map().foreign()[i].name);
}

}  // namespace
}  // namespace weft
