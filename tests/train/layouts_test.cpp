// The same numbers on any layout: losses, norms, every gradient and the weights after three steps equal one
// rank's.
#include <gtest/gtest.h>

#include "layout_run.hpp"

namespace weft::testing {
namespace {

using Schedule = ParallelConfig::Schedule;

class Layouts : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(Layouts, EqualOneRank) {
  std::string what;
  const double worst = worst_difference(run_layout(GetParam()), reference_of(GetParam()), 1e-5, &what);
  EXPECT_LE(worst, 1.0) << GetParam().name() << ": " << what;
}

std::vector<LayoutCase> first_rows() {
  std::vector<LayoutCase> rows;
  rows.push_back({.model = "llama", .dp = 2});
  rows.push_back({.model = "llama", .dp = 3, .distributed = true});
  rows.push_back({.model = "llama", .tp = 2});
  rows.push_back({.model = "llama", .tp = 2, .sequence_parallel = true});
  rows.push_back({.model = "gpt2", .tp = 2, .sequence_parallel = true});
  rows.push_back({.model = "gpt2", .tp = 3});
  rows.push_back({.model = "llama", .pp = 2});
  rows.push_back({.model = "gpt2", .pp = 2});
  rows.push_back({.model = "gpt2", .pp = 4, .schedule = Schedule::kGpipe});
  rows.push_back({.model = "gpt2", .pp = 2, .schedule = Schedule::kInterleaved, .chunks = 2});
  rows.push_back({.model = "gpt2", .pp = 2, .schedule = Schedule::kZbH1});
  rows.push_back({.model = "gpt2", .pp = 2, .schedule = Schedule::kZbV, .chunks = 2});
  rows.push_back({.model = "gpt2", .pp = 2, .dp = 2, .distributed = true, .bucket = 333});
  rows.push_back({.model = "gpt2",
                  .tp = 2,
                  .pp = 2,
                  .dp = 3,
                  .sequence_parallel = true,
                  .distributed = true,
                  .accumulation = 3,
                  .ragged = true});
  rows.push_back({.model = "gpt2", .cp = 2});
  rows.push_back({.model = "llama", .cp = 3, .cp_methods = {"all_gather"}});
  rows.push_back({.model = "llama", .cp = 2, .cp_methods = {"a2a"}});
  rows.push_back({.model = "gpt2", .cp = 4, .cp_methods = {"a2a+p2p"}, .head_exchange = 2});
  rows.push_back({.model = "gpt2", .dp = 3, .cp = 2, .distributed = true});
  rows.push_back({.model = "llama", .tp = 2, .cp = 3, .sequence_parallel = true});
  rows.push_back({.model = "gpt2", .pp = 3, .dp = 2, .cp = 2, .ragged = true, .stages = "Et|tt|tL"});
  rows.push_back({.model = "gpt2", .tp = 3, .cp = 4, .documents = true});
  using Kind = RecomputeSpec::Kind;
  rows.push_back({.model = "llama", .tp = 4, .groups = 2});
  rows.push_back({.model = "llama", .tp = 4, .sequence_parallel = true, .groups = 1});
  rows.push_back({.model = "llama", .tp = 6, .dp = 2, .distributed = true, .bucket = 300, .groups = 3});
  rows.push_back({.model = "llama", .tp = 2, .sequence_parallel = true, .tensor_parallel_chunks = 3});
  rows.push_back({.model = "gpt2", .tp = 2, .tensor_parallel_chunks = 3});
  rows.push_back({.model = "gpt2", .pp = 3, .stages = "Et|ttt|L"});
  rows.push_back({.model = "gpt2", .pp = 2, .recompute = {.kind = Kind::kUniform, .layers = 2}});
  rows.push_back({.model = "gpt2", .tp = 2, .recompute = {.kind = Kind::kBlock, .layers = 3}});
  rows.push_back({.model = "llama",
                  .tp = 2,
                  .sequence_parallel = true,
                  .recompute = {Kind::kSelective, 0, true, true, true}});
  rows.push_back({.model = "gpt2",
                  .tp = 2,
                  .pp = 2,
                  .schedule = Schedule::kZbH1,
                  .sequence_parallel = true,
                  .recompute = {Kind::kSelective, 0, false, false, true}});
  return rows;
}

// gtest wants letters and digits.
std::string test_name(const ::testing::TestParamInfo<LayoutCase>& row) {
  std::string name = row.param.name();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(First, Layouts, ::testing::ValuesIn(first_rows()), test_name);

}  // namespace
}  // namespace weft::testing
