// Every pair of choices that a layout of up to 12 ranks may make, each row equal to one rank.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <tuple>

#include "layout_table.hpp"

namespace weft::testing {
namespace {

const std::vector<TableRow>& rows() {
  static const std::vector<TableRow> all = covering_rows();
  return all;
}

// (factor, level, factor, level), and (tp, pp, dp) in front of them.
struct Pairs {
  std::set<std::tuple<std::size_t, int, std::size_t, int>> pairs;
  std::set<std::tuple<int, int, int>> axes;

  void add(const TableRow& row) {
    for (std::size_t f = 0; f < kFactors; ++f) {
      for (std::size_t g = f + 1; g < kFactors; ++g) pairs.emplace(f, row[f], g, row[g]);
    }
    axes.emplace(row[2], row[3], row[4]);
  }
};

// The layouts of this world that the configuration takes, as a user would write them: told by the program's
// own checks, not by the table's rules.
bool accepted(const LayoutCase& c) {
  TrainConfig config;
  config.parallel.ranks = c.ranks();
  config.parallel.tensor_model_parallel_size = c.tp;
  config.parallel.pipeline_model_parallel_size = c.pp;
  config.parallel.pipeline_schedule = c.schedule;
  config.parallel.num_virtual_stages_per_pipeline_rank = c.chunks;
  config.parallel.pipeline_model_parallel_layout = c.stages;
  config.model.num_layers = c.layers;
  const std::int64_t tp = c.tp, groups = c.model == "gpt2" ? c.heads : c.groups;
  if (c.ranks() > 12 || c.heads % tp != 0 || (groups % tp != 0 && tp % groups != 0)) return false;
  if (tp == 1 && (c.sequence_parallel || c.tensor_parallel_chunks > 1)) return false;  // the same as without
  PipelineShape shape = pipeline_shape(config);
  shape.forward_only = false;
  shape.microbatches = 12 * c.accumulation / c.dp;
  return problems_of(shape).empty() && problems_of(stage_split(config)).empty();
}

// By enumeration of every combination of the factors that may exclude one another; the others, two or five
// levels each, go with all of them.
Pairs possible() {
  Pairs all;
  const std::set<std::size_t> free{1, 6, 9, 10, 11, 13};
  TableRow row{};
  const std::function<void(std::size_t)> enumerate = [&](std::size_t factor) {
    if (factor == kFactors) {
      const bool uneven = row[14] == 1, one_stage = row[3] == 0 && case_of(row).chunks == 1;
      if ((uneven && one_stage) || !accepted(case_of(row))) return;
      for (std::size_t f = 0; f < kFactors; ++f) {
        for (std::size_t g = f + 1; g < kFactors; ++g) {
          for (int a = 0; a < (free.contains(f) ? kLevels[f] : 1); ++a) {
            for (int b = 0; b < (free.contains(g) ? kLevels[g] : 1); ++b) {
              all.pairs.emplace(f, free.contains(f) ? a : row[f], g, free.contains(g) ? b : row[g]);
            }
          }
        }
      }
      all.axes.emplace(row[2], row[3], row[4]);
      return;
    }
    for (int i = 0; i < (free.contains(factor) ? 1 : kLevels[factor]); ++i) {
      row[factor] = i;
      enumerate(factor + 1);
    }
  };
  enumerate(0);
  return all;
}

TEST(LayoutTableRows, HoldEveryPairThatIsPossible) {
  const Pairs wanted = possible();
  Pairs held;
  for (const TableRow& row : rows()) {
    EXPECT_TRUE(accepted(case_of(row))) << case_of(row).name();
    held.add(row);
  }
  EXPECT_EQ(held.axes, wanted.axes);
  EXPECT_EQ(held.pairs, wanted.pairs);
  // Known by hand: 12 groups of heads go with any tp, 2 with all but tp 3, 3 with tp 1 and 3, 6 and 1 ...
  EXPECT_TRUE(wanted.pairs.contains({0, 4, 2, 3}));
  EXPECT_FALSE(wanted.pairs.contains({0, 4, 2, 2}));
  EXPECT_FALSE(wanted.pairs.contains({3, 3, 4, 3}));  // pp4 dp4: 16 ranks
  EXPECT_FALSE(wanted.pairs.contains({2, 0, 5, 1}));  // sequence parallel needs tp
  fmt::print("{} rows, {} pairs, {} (tp, pp, dp)\n", rows().size(), held.pairs.size(), held.axes.size());
}

// In tests of a quarter each, so that they can run side by side.
class LayoutTable : public ::testing::TestWithParam<std::size_t> {};

TEST_P(LayoutTable, EqualsOneRank) {
  for (std::size_t i = GetParam(); i < rows().size(); i += 4) {
    LayoutCase layout = case_of(rows()[i]);
    // In fp64 too, where nothing hides below the rounding; and the parts that GPUs have.
    for (const auto& [dtype, tolerance, fused] :
         {std::tuple{DType::kF32, 1e-5, false}, {DType::kF64, 1e-11, false}, {DType::kF32, 1e-5, true}}) {
      layout.dtype = dtype;
      layout.fused = fused;
      std::string what;
      const double worst = worst_difference(run_layout(layout), reference_of(layout), tolerance, &what);
      EXPECT_LE(worst, 1.0) << layout.name() << ": " << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quarter, LayoutTable, ::testing::Range(std::size_t{0}, std::size_t{4}));

}  // namespace
}  // namespace weft::testing
