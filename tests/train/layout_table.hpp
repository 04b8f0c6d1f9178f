// A covering array of layouts: rows such that every pair of choices which some legal layout of at most 12
// ranks makes occurs in a row, and every legal (tp, pp, dp, cp) too.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "layout_run.hpp"

namespace weft::testing {

enum class Factor {
  kModel,
  kTied,
  kTp,
  kPp,
  kDp,
  kCp,
  kContext,  // method and order of context parallelism
  kSequenceParallel,
  kDistributed,
  kSchedule,
  kAccumulation,
  kRagged,
  kOverlap,
  kBucket,
  kTensorParallelChunks,
  kRecompute,
  kUneven,  // stages of unequal size, the first without a layer
  kWindow,
  kDocuments,
  kFused,
  kHeadNorms,
  kCount,
};
constexpr std::size_t kFactors = static_cast<std::size_t>(Factor::kCount);
// Number of levels of each factor.
inline const std::array<int, kFactors> kLevels{
    7, 2, 4, 4, 4, 4, 7, 2, 2, static_cast<int>(pipeline_schedules().size()), 2, 2,
    2, 2, 2, 5, 2, 2, 2, 2, 2};
constexpr int kMostRanks = 12;

// The level of each factor; −1: not yet chosen.
using TableRow = std::array<int, kFactors>;

// Whether no rule is broken by what is chosen so far.
bool legal(const TableRow& row);
// Rows found greedily; the same on every machine.
std::vector<TableRow> covering_rows();
// Any legal rows; the same for a seed on every machine.
std::vector<TableRow> random_rows(std::uint32_t seed, std::size_t count);
LayoutCase case_of(const TableRow& row);

}  // namespace weft::testing
