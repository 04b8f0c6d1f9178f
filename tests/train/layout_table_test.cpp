// Every pair of choices that a layout of up to 12 ranks may make, each row equal to one rank.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>
#include <tuple>

#include "layout_table.hpp"
#include "train/context_parallel.hpp"

namespace weft::testing {
namespace {

const std::vector<TableRow>& rows() {
  static const std::vector<TableRow> all = covering_rows();
  return all;
}

constexpr std::size_t index(Factor factor) {
  return static_cast<std::size_t>(factor);
}

// (factor, level, factor, level), and (tp, pp, dp, cp).
struct Pairs {
  std::set<std::tuple<std::size_t, int, std::size_t, int>> pairs;
  std::set<std::tuple<int, int, int, int>> axes;

  void add_axes(const TableRow& row) {
    axes.emplace(row[index(Factor::kTp)], row[index(Factor::kPp)], row[index(Factor::kDp)],
                 row[index(Factor::kCp)]);
  }
  void add(const TableRow& row) {
    for (std::size_t f = 0; f < kFactors; ++f) {
      for (std::size_t g = f + 1; g < kFactors; ++g) pairs.emplace(f, row[f], g, row[g]);
    }
    add_axes(row);
  }
};

// The layouts of this world that the configuration takes, as a user would write them: told by the program's
// own checks, not by the table's rules.
bool accepted(const LayoutCase& c) {
  const std::int64_t tp = c.tp, groups = c.model == "gpt2" ? c.heads : c.groups;
  if (c.ranks() > 12 || c.heads % tp != 0 || (groups % tp != 0 && tp % groups != 0)) return false;
  if (tp == 1 && (c.sequence_parallel || c.tensor_parallel_chunks > 1)) return false;  // the same as without
  const TrainConfig config = config_of(c);
  if (!context_problems(config).empty()) return false;
  PipelineShape shape = pipeline_shape(config);
  shape.forward_only = false;
  shape.microbatches = static_cast<int>(12 * c.accumulation / c.dp);
  return problems_of(shape).empty() && problems_of(stage_split(config)).empty();
}

// By enumeration of every combination of the factors that may exclude one another; the others go with all of
// them.
Pairs possible() {
  using enum Factor;
  Pairs all;
  std::set<std::size_t> free;
  for (const Factor factor : {kTied, kDistributed, kRagged, kOverlap, kBucket, kRecompute, kWindow,
                              kDocuments, kFused, kHeadNorms}) {
    free.insert(index(factor));
  }
  std::array<std::set<int>, kFactors> seen;
  for (const std::size_t f : free) {
    for (int a = 0; a < kLevels[f]; ++a) seen[f].insert(a);
  }
  TableRow row{};
  const std::function<void(std::size_t)> enumerate = [&](std::size_t factor) {
    if (factor == kFactors) {
      const LayoutCase layout = case_of(row);
      const bool uneven = row[index(kUneven)] == 1, one_stage = layout.pp * layout.chunks == 1;
      if ((uneven && one_stage) || !accepted(layout)) return;
      for (std::size_t f = 0; f < kFactors; ++f) {
        if (free.contains(f)) continue;
        seen[f].insert(row[f]);
        for (std::size_t g = f + 1; g < kFactors; ++g) {
          if (!free.contains(g)) all.pairs.emplace(f, row[f], g, row[g]);
        }
      }
      all.add_axes(row);
      return;
    }
    if (factor == index(kContext) &&  // nothing further makes it smaller
        (row[index(kTp)] + 1) * (row[index(kPp)] + 1) * (row[index(kDp)] + 1) * (row[index(kCp)] + 1) > 12) {
      return;
    }
    // Methods are for sequences that are cut.
    const bool one = free.contains(factor) || (factor == index(kContext) && row[index(kCp)] == 0);
    for (int i = 0; i < (one ? 1 : kLevels[factor]); ++i) {
      row[factor] = i;
      enumerate(factor + 1);
    }
  };
  enumerate(0);
  for (std::size_t f = 0; f < kFactors; ++f) {
    for (std::size_t g = f + 1; g < kFactors; ++g) {
      if (!free.contains(f) && !free.contains(g)) continue;
      for (const int a : seen[f]) {
        for (const int b : seen[g]) all.pairs.emplace(f, a, g, b);
      }
    }
  }
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
  using enum Factor;
  const auto possible_pair = [&](Factor f, int a, Factor g, int b) {
    return wanted.pairs.contains({index(f), a, index(g), b});
  };
  EXPECT_TRUE(possible_pair(kModel, 4, kTp, 3));
  EXPECT_FALSE(possible_pair(kModel, 4, kTp, 2));
  EXPECT_FALSE(possible_pair(kPp, 3, kDp, 3));                // pp4 dp4: 16 ranks
  EXPECT_FALSE(possible_pair(kTp, 0, kSequenceParallel, 1));  // sequence parallel needs tp
  EXPECT_FALSE(possible_pair(kCp, 2, kContext, 5));           // cp3 is no two groups
  EXPECT_FALSE(possible_pair(kPp, 3, kCp, 3));
  EXPECT_TRUE(possible_pair(kTp, 3, kCp, 2));
  for (const auto& [tp, pp, dp, cp] : {std::array{2, 1, 1, 3}, {1, 1, 3, 2}, {1, 3, 2, 2}, {3, 1, 1, 4}}) {
    EXPECT_TRUE(held.axes.contains({tp - 1, pp - 1, dp - 1, cp - 1})) << tp << pp << dp << cp;
  }
  fmt::print("{} rows, {} pairs, {} (tp, pp, dp, cp)\n", rows().size(), held.pairs.size(), held.axes.size());
}

// In tests of a quarter each, so that they can run side by side.
class LayoutTable : public ::testing::TestWithParam<std::size_t> {};

TEST_P(LayoutTable, EqualsOneRank) {
  for (std::size_t i = GetParam(); i < rows().size(); i += 4) {
    LayoutCase layout = case_of(rows()[i]);
    constexpr int kSteps = 2;
    // In fp64, where nothing hides below the rounding; the parts that GPUs have in fp32 too.
    for (const auto& [dtype, tolerance] : {std::pair{DType::kF64, 1e-11}, {DType::kF32, 1e-5}}) {
      if (dtype == DType::kF32 && !layout.fused) continue;
      layout.dtype = dtype;
      std::string what;
      const double worst =
          worst_difference(run_layout(layout, kSteps), reference_of(layout, kSteps), tolerance, &what);
      EXPECT_LE(worst, 1.0) << layout.name() << ": " << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quarter, LayoutTable, ::testing::Range(std::size_t{0}, std::size_t{4}));

}  // namespace
}  // namespace weft::testing
