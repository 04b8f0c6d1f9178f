#include "layout_table.hpp"

#include <algorithm>
#include <numeric>
#include <random>

namespace weft::testing {
namespace {

using Schedule = ParallelConfig::Schedule;

// Of llama; the first: gpt2, the last: latent attention, whose keys are as many as its queries.
constexpr std::array<int, 7> kGroups{0, 12, 6, 3, 2, 1, 12};
constexpr int kLatent = 6;
constexpr std::int64_t kHeads = 12, kLayers = 4;
constexpr int kBatch = 12;

// Levels of kContext; without context parallelism the first.
struct Context {
  std::vector<std::string> methods;
  ParallelConfig::SequenceOrder order;
};
const std::vector<Context>& contexts() {
  using enum ParallelConfig::SequenceOrder;
  static const std::vector<Context> all{{{"p2p"}, kZigzag},
                                        {{"p2p"}, kContiguous},
                                        {{"all_gather"}, kZigzag},
                                        {{"all_gather"}, kContiguous},
                                        {{"a2a"}, kContiguous},
                                        {{"a2a+p2p"}, kZigzag},
                                        {{"a2a", "p2p", "all_gather", "a2a"}, kZigzag}};
  return all;
}

constexpr std::size_t index(Factor factor) {
  return static_cast<std::size_t>(factor);
}
int level(const TableRow& row, Factor factor) {
  return row[index(factor)];
}
bool chosen(const TableRow& row, std::initializer_list<Factor> factors) {
  return std::all_of(factors.begin(), factors.end(), [&](Factor f) { return level(row, f) >= 0; });
}
int size(const TableRow& row, Factor axis) {
  return 1 + std::max(level(row, axis), 0);
}
Schedule schedule_of(const TableRow& row) {
  return pipeline_schedules()[static_cast<std::size_t>(level(row, Factor::kSchedule))].schedule;
}
int chunks_of(Schedule schedule) {
  const int fixed = form_of(schedule).chunks;
  return fixed > 0 ? fixed : 2;
}

bool legal_schedule(const TableRow& row) {
  const Schedule schedule = schedule_of(row);
  const int batch = kBatch * (level(row, Factor::kAccumulation) == 1 ? 2 : 1);
  return problems_of(PipelineShape{.schedule = schedule,
                                   .ranks = size(row, Factor::kPp),
                                   .chunks = chunks_of(schedule),
                                   .microbatches = batch / size(row, Factor::kDp)})
      .empty();
}

int head_exchange_of(const TableRow& row) {
  const bool groups =
      contexts()[static_cast<std::size_t>(level(row, Factor::kContext))].methods.front() == "a2a+p2p";
  return groups ? 2 : 0;
}

// As far as it is known.
bool legal_context(const TableRow& row) {
  const int cp = size(row, Factor::kCp), context = level(row, Factor::kContext);
  if (cp == 1) return context == 0;
  const std::vector<std::string>& methods = contexts()[static_cast<std::size_t>(context)].methods;
  const int groups_of_ranks = head_exchange_of(row);
  if (groups_of_ranks > 0 && cp % groups_of_ranks != 0) return false;
  // Ranks that share the heads.
  const int sharers = groups_of_ranks > 0 ? groups_of_ranks : methods.front() == "a2a" ? cp : 1;
  if (sharers == 1 || level(row, Factor::kTp) < 0) return true;
  const int tp = size(row, Factor::kTp);
  if (static_cast<int>(kHeads) / tp % sharers != 0) return false;
  if (level(row, Factor::kModel) < 0) return true;
  const int model = level(row, Factor::kModel);
  const int all = model == 0 ? static_cast<int>(kHeads) : kGroups[static_cast<std::size_t>(model)];
  const int groups = std::max(all / tp, 1);
  return groups % sharers == 0 || sharers % groups == 0;
}

// Whether the row can still become a legal layout.
bool completable(TableRow& row, std::size_t from = 0) {
  if (!legal(row)) return false;
  while (from < kFactors && row[from] >= 0) ++from;
  if (from == kFactors) return true;
  bool found = false;
  for (int i = 0; i < kLevels[from] && !found; ++i) {
    row[from] = i;
    found = completable(row, from + 1);
  }
  row[from] = -1;
  return found;
}

// What must occur in a row: levels of two factors, or of the four axes.
using Wanted = std::vector<std::pair<std::size_t, int>>;

std::vector<Wanted> all_wanted() {
  std::vector<Wanted> all;
  const auto keep = [&](Wanted wanted) {
    TableRow row;
    row.fill(-1);
    for (const auto& [factor, value] : wanted) row[factor] = value;
    if (completable(row)) all.push_back(std::move(wanted));
  };
  for (int tp = 0; tp < 4; ++tp) {
    for (int pp = 0; pp < 4; ++pp) {
      for (int dp = 0; dp < 4; ++dp) {
        for (int cp = 0; cp < 4; ++cp) {
          keep({{index(Factor::kTp), tp},
                {index(Factor::kPp), pp},
                {index(Factor::kDp), dp},
                {index(Factor::kCp), cp}});
        }
      }
    }
  }
  for (std::size_t f = 0; f < kFactors; ++f) {
    for (std::size_t g = f + 1; g < kFactors; ++g) {
      for (int a = 0; a < kLevels[f]; ++a) {
        for (int b = 0; b < kLevels[g]; ++b) keep({{f, a}, {g, b}});
      }
    }
  }
  return all;
}

bool holds(const TableRow& row, const Wanted& wanted) {
  return std::all_of(wanted.begin(), wanted.end(),
                     [&](const auto& choice) { return row[choice.first] == choice.second; });
}

// Of what is open, how much the chosen levels hold, counting what contains `factor` only.
int gain(const TableRow& row, const std::vector<Wanted>& open, std::size_t factor) {
  return static_cast<int>(std::count_if(open.begin(), open.end(), [&](const Wanted& wanted) {
    return std::any_of(wanted.begin(), wanted.end(), [&](const auto& c) { return c.first == factor; }) &&
           holds(row, wanted);
  }));
}

TableRow grow(const Wanted& seed, const std::vector<Wanted>& open, std::mt19937& random) {
  TableRow row;
  row.fill(-1);
  for (const auto& [factor, value] : seed) row[factor] = value;
  std::array<std::size_t, kFactors> order;
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = kFactors; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  for (const std::size_t factor : order) {
    if (row[factor] >= 0) continue;
    int best = -1, most = -1;
    const int start = static_cast<int>(random() % static_cast<unsigned>(kLevels[factor]));
    for (int i = 0; i < kLevels[factor]; ++i) {
      row[factor] = (start + i) % kLevels[factor];
      if (!completable(row)) continue;
      const int held = gain(row, open, factor);
      if (held > most) {
        most = held;
        best = row[factor];
      }
    }
    row[factor] = best;
  }
  return row;
}

// Stages as equal as 4 layers allow, or the first without any.
std::string stages_of(int stages, bool uneven) {
  if (stages == 1 || (!uneven && kLayers % stages == 0)) return {};
  const int first = uneven ? 1 : 0;
  std::string text;
  for (int stage = 0; stage < stages; ++stage) {
    if (stage > 0) text += '|';
    if (stage == 0) text += 'E';
    const auto number = static_cast<std::int64_t>(stage - first),
               parts = static_cast<std::int64_t>(stages - first);
    if (number >= 0) {
      const std::int64_t layers = kLayers / parts + (number < kLayers % parts ? 1 : 0);
      text += std::string(static_cast<std::size_t>(layers), 't');
    }
    if (stage + 1 == stages) text += 'L';
  }
  return text;
}

RecomputeSpec recompute_of(int level) {
  using Kind = RecomputeSpec::Kind;
  switch (level) {
    case 1:
      return {.kind = Kind::kUniform, .layers = 2};
    case 2:
      return {.kind = Kind::kBlock, .layers = 1};
    case 3:
      return {.kind = Kind::kSelective, .core_attention = true, .norms = true};
    case 4:
      return {.kind = Kind::kSelective, .mlp = true, .norms = true};
    default:
      return {};
  }
}

}  // namespace

bool legal(const TableRow& row) {
  if (size(row, Factor::kTp) * size(row, Factor::kPp) * size(row, Factor::kDp) * size(row, Factor::kCp) >
      kMostRanks) {
    return false;
  }
  if (chosen(row, {Factor::kTp}) && size(row, Factor::kTp) == 1 &&
      (level(row, Factor::kSequenceParallel) == 1 || level(row, Factor::kTensorParallelChunks) == 1)) {
    return false;
  }
  if (chosen(row, {Factor::kModel, Factor::kTp}) && level(row, Factor::kModel) > 0) {
    const int groups = kGroups[static_cast<std::size_t>(level(row, Factor::kModel))];
    const int tp = size(row, Factor::kTp);
    if (groups % tp != 0 && tp % groups != 0) return false;
  }
  if (chosen(row, {Factor::kCp, Factor::kContext}) && !legal_context(row)) return false;
  if (chosen(row, {Factor::kPp, Factor::kSchedule})) {
    const Schedule schedule = schedule_of(row);
    if (schedule == Schedule::kInterleaved && size(row, Factor::kPp) == 1) return false;
    if (level(row, Factor::kUneven) == 1 && size(row, Factor::kPp) * chunks_of(schedule) == 1) return false;
    if (chosen(row, {Factor::kDp, Factor::kAccumulation}) && !legal_schedule(row)) return false;
  }
  return true;
}

std::vector<TableRow> covering_rows() {
  std::mt19937 random(20);
  std::vector<Wanted> open = all_wanted();
  std::vector<TableRow> rows;
  while (!open.empty()) {
    TableRow best{};
    std::ptrdiff_t most = 0;
    for (int attempt = 0; attempt < 8; ++attempt) {
      const TableRow row = grow(open.front(), open, random);
      const auto held =
          std::count_if(open.begin(), open.end(), [&](const Wanted& wanted) { return holds(row, wanted); });
      if (held > most) {
        most = held;
        best = row;
      }
    }
    rows.push_back(best);
    std::erase_if(open, [&](const Wanted& wanted) { return holds(best, wanted); });
  }
  return rows;
}

std::vector<TableRow> random_rows(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<TableRow> rows;
  while (rows.size() < count) rows.push_back(grow({}, {}, random));  // wants nothing: each level as it comes
  return rows;
}

LayoutCase case_of(const TableRow& row) {
  const int model = level(row, Factor::kModel);
  LayoutCase c;
  c.model = model == 0 ? "gpt2" : "llama";
  if (model > 0) c.groups = kGroups[static_cast<std::size_t>(model)];
  c.latent = model == kLatent;
  c.tied = level(row, Factor::kTied) == 1;
  c.tied_given = true;
  c.tp = size(row, Factor::kTp);
  c.pp = size(row, Factor::kPp);
  c.dp = size(row, Factor::kDp);
  c.cp = size(row, Factor::kCp);
  const Context& context = contexts()[static_cast<std::size_t>(level(row, Factor::kContext))];
  c.cp_methods = context.methods;
  c.order = context.order;
  c.head_exchange = head_exchange_of(row);
  if (level(row, Factor::kWindow) == 1) c.window = 5;
  c.documents = level(row, Factor::kDocuments) == 1;
  c.fused = level(row, Factor::kFused) == 1;
  c.head_norms = level(row, Factor::kHeadNorms) == 1;
  c.sequence_parallel = level(row, Factor::kSequenceParallel) == 1;
  c.distributed = level(row, Factor::kDistributed) == 1;
  c.schedule = schedule_of(row);
  c.chunks = chunks_of(c.schedule);
  c.accumulation = level(row, Factor::kAccumulation) == 1 ? 2 : 1;
  c.ragged = level(row, Factor::kRagged) == 1;
  c.overlap = level(row, Factor::kOverlap) == 1;
  c.bucket = level(row, Factor::kBucket) == 1 ? 100'000 : 333;
  c.tensor_parallel_chunks = level(row, Factor::kTensorParallelChunks) == 1 ? 3 : 1;
  c.recompute = recompute_of(level(row, Factor::kRecompute));
  c.layers = kLayers;
  c.stages = stages_of(c.pp * c.chunks, level(row, Factor::kUneven) == 1);
  return c;
}

}  // namespace weft::testing
