// What may not change a single bit: the order in which a schedule does the same sums, what is computed again,
// what overlaps with what, and where the buckets end.
#include <gtest/gtest.h>

#include "layout_run.hpp"

namespace weft::testing {
namespace {

using Schedule = ParallelConfig::Schedule;
using Kind = RecomputeSpec::Kind;

LayoutCase base_of(const char* model, DType dtype, bool sequence_parallel, bool distributed, int tp = 2) {
  return {.model = model,
          .tp = tp,
          .pp = 2,
          .dp = 2,
          .sequence_parallel = sequence_parallel,
          .distributed = distributed,
          .ragged = true,
          .dtype = dtype,
          .groups = model == std::string("llama") ? 2 : 12,
          .fused = tp == 1};
}

LayoutCase cut_of(LayoutCase base, const char* method) {
  base.dp = 1;
  base.cp = 2;
  base.cp_methods = {method};
  base.documents = base.model == "gpt2";
  return base;
}

std::vector<LayoutCase> variants_of(const LayoutCase& base) {
  std::vector<LayoutCase> all;
  const auto add = [&](const auto& change) {
    all.push_back(base);
    change(all.back());
  };
  add([](LayoutCase& c) { c.schedule = Schedule::kGpipe; });
  add([](LayoutCase& c) { c.schedule = Schedule::kZbH1; });
  add([](LayoutCase& c) { c.overlap = false; });
  add([](LayoutCase& c) {
    c.overlap = false;
    c.schedule = Schedule::kZbH1;
  });
  add([](LayoutCase& c) { c.recompute = {.kind = Kind::kUniform, .layers = 2}; });
  add([](LayoutCase& c) { c.recompute = {.kind = Kind::kBlock, .layers = 1}; });
  add([](LayoutCase& c) { c.recompute = {.kind = Kind::kSelective, .core_attention = true}; });
  add([](LayoutCase& c) { c.recompute = {.kind = Kind::kSelective, .mlp = true, .norms = true}; });
  add([](LayoutCase& c) {
    c.recompute = {.kind = Kind::kSelective, .core_attention = true, .norms = true};
    c.schedule = Schedule::kZbH1;
  });
  if (base.tp == 1) return all;
  // The vocabulary is cut: there is no fused head, which adds its weight gradient up by pieces of the
  // sequence.
  add([](LayoutCase& c) { c.fused = true; });
  add([](LayoutCase& c) {
    c.fused = true;
    c.schedule = Schedule::kZbH1;
    c.recompute = {.kind = Kind::kUniform, .layers = 1};
  });
  add([](LayoutCase& c) { c.tensor_parallel_chunks = 3; });
  add([](LayoutCase& c) {
    c.tensor_parallel_chunks = 2;
    c.schedule = Schedule::kZbH1;
    c.recompute = {.kind = Kind::kUniform, .layers = 1};
  });
  if (!base.distributed) {  // else a norm is summed from other pieces
    add([](LayoutCase& c) { c.bucket = 1; });
    add([](LayoutCase& c) { c.bucket = 1'000'000; });
  }
  return all;
}

class LayoutBits : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(LayoutBits, AreTheSame) {
  const LayoutResult expected = run_layout(GetParam());
  for (const LayoutCase& variant : variants_of(GetParam())) {
    std::string what;
    EXPECT_TRUE(same_bits(run_layout(variant), expected, &what)) << variant.name() << ": " << what;
  }
  // And a run can differ at all.
  LayoutCase other = GetParam();
  other.dp = other.cp = 1;
  other.ragged = false;
  std::string what;
  EXPECT_FALSE(same_bits(run_layout(other), expected, &what));
}

std::string test_name(const ::testing::TestParamInfo<LayoutCase>& row) {
  std::string name = row.param.name();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Of, LayoutBits,
    ::testing::Values(base_of("gpt2", DType::kF32, true, false), base_of("gpt2", DType::kBF16, true, false),
                      base_of("llama", DType::kF32, true, true), base_of("llama", DType::kBF16, true, true),
                      base_of("llama", DType::kBF16, false, false), base_of("gpt2", DType::kF32, false, true),
                      // The vocabulary is whole: with the fused head.
                      base_of("gpt2", DType::kBF16, false, true, 1),
                      base_of("llama", DType::kF32, false, false, 1),
                      // Sequences are cut.
                      cut_of(base_of("gpt2", DType::kBF16, true, true), "p2p"),
                      cut_of(base_of("llama", DType::kF32, true, false), "all_gather"),
                      cut_of(base_of("gpt2", DType::kF32, false, true, 1), "a2a")),
    test_name);

}  // namespace
}  // namespace weft::testing
