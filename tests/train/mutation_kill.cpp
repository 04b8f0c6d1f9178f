#include "mutation_kill.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace weft::testing {
namespace {

struct Row {
  LayoutCase layout;
  std::set<CallSite> sites;
};

constexpr int kSteps = 1;

std::string difference_of(const LayoutCase& layout, const Mutant& mutant, bool* happened, bool* stopped) {
  std::atomic<bool> passed = false;
  std::string what;
  try {
    const LayoutResult result = run_layout(layout, kSteps, mutated(layout, &mutant, nullptr, &passed));
    if (worst_difference(result, reference_of(layout, kSteps), 1e-5, &what) <= 1) what.clear();
  } catch (const std::exception& error) {  // an overflow, or what the program checks by itself
    what = error.what();
    *stopped = true;
  }
  *happened = passed;
  return what;
}

}  // namespace

KillCount kill(const std::vector<LayoutCase>& layouts, std::size_t stride) {
  std::vector<Row> rows;
  std::set<CallSite> sites;
  for (const LayoutCase& layout : layouts) {
    SiteLog log;
    std::atomic<bool> happened = false;
    run_layout(layout, kSteps, mutated(layout, nullptr, &log, &happened));
    rows.push_back({layout, log.sites()});
    sites.merge(log.sites());
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    const auto cost = [](const LayoutCase& c) { return c.ranks() * c.accumulation; };
    return cost(a.layout) < cost(b.layout);
  });
  std::vector<Mutant> mutants;
  for (const CallSite& site : sites) {
    for (const Mutation mutation : mutations_of(site)) mutants.push_back({site, mutation});
  }
  KillCount count;
  for (std::size_t i = 0; i < mutants.size(); i += stride) {
    if (!equivalent(mutants[i]).empty()) {
      ++count.equivalent;
      continue;
    }
    bool happened = false, stopped = false;
    std::string difference;
    for (const Row& row : rows) {
      const Mutation mutation = mutants[i].mutation;
      const bool possible = (mutation != Mutation::kShiftDp || row.layout.dp > 1) &&
                            (mutation != Mutation::kShiftTp || row.layout.tp > 1) &&
                            (mutation != Mutation::kShiftCp || row.layout.cp > 1);
      if (!possible || !row.sites.contains(mutants[i].site)) continue;
      bool here = false;
      stopped = false;
      difference = difference_of(row.layout, mutants[i], &here, &stopped);
      ++count.runs;
      happened = happened || here;
      if (!difference.empty()) break;
    }
    if (!happened) continue;  // no row has a wrong group of this kind
    ++count.mutants;
    if (!difference.empty()) {
      ++count.killed;
      count.stopped += stopped ? 1 : 0;
    } else {
      count.survivors.push_back(to_string(mutants[i]));
    }
  }
  return count;
}

std::vector<LayoutCase> kill_rows() {
  using Schedule = ParallelConfig::Schedule;
  using Kind = RecomputeSpec::Kind;
  return {{.model = "gpt2", .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .distributed = true},
          {.model = "llama",
           .tp = 4,
           .dp = 2,
           .sequence_parallel = true,
           .overlap = false,
           .groups = 2,
           .tensor_parallel_chunks = 3},
          {.model = "llama", .tp = 4, .dp = 3, .distributed = true, .groups = 2},
          {.model = "gpt2", .pp = 2, .dp = 3, .schedule = Schedule::kZbH1, .ragged = true},
          {.model = "gpt2",
           .tp = 3,
           .pp = 2,
           .dp = 2,
           .schedule = Schedule::kInterleaved,
           .chunks = 2,
           .tensor_parallel_chunks = 3},
          {.model = "gpt2",
           .tp = 2,
           .pp = 3,
           .dp = 2,
           .schedule = Schedule::kZbV,
           .chunks = 2,
           .sequence_parallel = true,
           .distributed = true,
           .stages = "E|t|t|t|t|L",
           .recompute = {Kind::kSelective, 0, true, false, true}},
          // Norms and matrices in one bucket that a norm fills: unlike a bucket of norms alone, it must not
          // be summed over other tensor-parallel ranks.
          {.model = "gpt2",
           .tp = 2,
           .pp = 2,
           .dp = 2,
           .sequence_parallel = true,
           .distributed = true,
           .bucket = 100'000,
           .layers = 2},
          {.model = "gpt2",
           .tp = 2,
           .pp = 2,
           .dp = 2,
           .sequence_parallel = true,
           .distributed = true,
           .bucket = 100'000,
           .layers = 2,
           .recompute = {Kind::kSelective, 0, true, false, true}},
          // Sequences that are cut.
          {.model = "gpt2", .pp = 2, .dp = 2, .cp = 2, .distributed = true, .layers = 2},
          {.model = "gpt2", .dp = 2, .cp = 2, .ragged = true, .layers = 2},
          {.model = "llama",
           .tp = 2,
           .dp = 2,
           .cp = 2,
           .sequence_parallel = true,
           .distributed = true,
           .layers = 2,
           .groups = 1,
           .cp_methods = {"all_gather", "a2a"}},
          {.model = "gpt2",
           .tp = 2,
           .cp = 2,
           .sequence_parallel = true,
           .bucket = 100'000,
           .layers = 2,
           .cp_methods = {"all_gather"}},
          {.model = "gpt2",
           .tp = 2,
           .cp = 4,
           .layers = 2,
           .recompute = {Kind::kSelective, 0, true, false, true},
           .cp_methods = {"a2a+p2p"},
           .head_exchange = 2},
          {.model = "llama",
           .pp = 2,
           .cp = 3,
           .distributed = true,
           .layers = 2,
           .cp_methods = {"a2a", "p2p"},
           .order = ParallelConfig::SequenceOrder::kZigzag}};
}

}  // namespace weft::testing
