#include "mesh/mesh.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/check.hpp"

namespace weft {
namespace {

struct GridAxis {
  Axis axis;
  int size;
};
using Grid = std::array<GridAxis, 4>;

// One of the two grids, leftmost axis fastest: rank = a + A * (b + B * (c + C * d)).
Grid grid_of(const MeshSizes& s, int edp, bool expert) {
  const GridAxis data = expert ? GridAxis{Axis::kEdp, edp} : GridAxis{Axis::kDp, s.dp};
  const GridAxis stage{Axis::kPp, s.pp};
  const GridAxis first = expert ? GridAxis{Axis::kEtp, s.etp} : GridAxis{Axis::kTp, s.tp};
  const GridAxis second = expert ? GridAxis{Axis::kEp, s.ep} : GridAxis{Axis::kCp, s.cp};
  if (s.pp_before_dp) return {first, second, stage, data};
  return {first, second, data, stage};
}

bool of_expert_grid(Axis axis) {
  return axis == Axis::kEtp || axis == Axis::kEp || axis == Axis::kEdp;
}
bool of_dense_grid(Axis axis) {
  return axis == Axis::kTp || axis == Axis::kCp || axis == Axis::kDp;
}

struct GridView {
  Grid grid;
  std::array<bool, 4> masked{};  // axes that vary inside a group
};

// The offsets, from the first rank of a group, that the axes with masked == which take, leftmost fastest.
std::vector<int> offsets(const GridView& view, bool which) {
  std::vector<int> all{0};
  int stride = 1;
  for (std::size_t i = 0; i < view.grid.size(); ++i) {
    const int size = view.grid[i].size;
    if (view.masked[i] == which) {
      const std::size_t before = all.size();
      all.reserve(before * static_cast<std::size_t>(size));
      for (int k = 1; k < size; ++k) {
        for (std::size_t j = 0; j < before; ++j) all.push_back(all[j] + k * stride);
      }
    }
    stride *= size;
  }
  return all;
}

GridView masked(const MeshSizes& sizes, int edp, const std::vector<Axis>& axes) {
  const bool expert = std::any_of(axes.begin(), axes.end(), of_expert_grid);
  WEFT_CHECK(!expert || std::none_of(axes.begin(), axes.end(), of_dense_grid),
             "a group over axes of the dense and of the expert grid");
  GridView view{grid_of(sizes, edp, expert)};
  for (std::size_t i = 0; i < view.grid.size(); ++i) {
    view.masked[i] = std::find(axes.begin(), axes.end(), view.grid[i].axis) != axes.end();
  }
  return view;
}

void check_sizes(const MeshSizes& s, int rank) {
  std::vector<std::string> problems;
  const std::pair<const char*, int> all[] = {
      {"tensor (tp)", s.tp},   {"context (cp)", s.cp}, {"data (dp)", s.dp},
      {"pipeline (pp)", s.pp}, {"expert (ep)", s.ep},  {"expert tensor (etp)", s.etp == s.tp ? 1 : s.etp}};
  for (const auto& [name, size] : all) {
    if (size < 1)
      problems.push_back(fmt::format("{} parallel size is {}; it must be at least 1", name, size));
  }
  if (!problems.empty()) throw ConfigError(problems);

  constexpr std::int64_t kMostRanks = std::int64_t{1}
                                      << 24;  // far beyond any machine; rank arithmetic stays in int
  std::int64_t world = 1;
  for (const int size : {s.tp, s.cp, s.dp, s.pp}) {
    world *= size;
    if (world > kMostRanks)
      config_fail("tp {} x cp {} x dp {} x pp {} is more than {} ranks", s.tp, s.cp, s.dp, s.pp, kMostRanks);
  }
  // Both grids have the same pipelines, so the expert axes share out the ranks of one stage.
  const std::int64_t stage = world / s.pp;
  const auto divides = [&](const char* name, std::int64_t size) {
    if (stage % size != 0) {
      problems.push_back(
          fmt::format("{} does not divide the {} ranks of a pipeline stage (tp {} x cp {} x dp {})", name,
                      stage, s.tp, s.cp, s.dp));
    }
  };
  divides(fmt::format("expert parallel size {}", s.ep).c_str(), s.ep);
  divides(fmt::format("expert tensor parallel size {}", s.etp).c_str(), s.etp);
  const std::int64_t both = std::int64_t{s.ep} * s.etp;
  if (problems.empty()) {
    divides(fmt::format("expert parallel size {} x expert tensor parallel size {} = {}", s.ep, s.etp, both)
                .c_str(),
            both);
  }
  if (problems.empty() && s.pp_before_dp && s.pp > 1 && stage / both != s.dp) {
    // Stages lie inside the data axis: only equal data axes put the same ranks on a stage in both grids.
    problems.push_back(fmt::format(
        "with the order tp-cp-pp-dp and pipeline parallel size {}, the experts' data parallel size must "
        "equal the dense "
        "one, but {} ranks of a stage / (ep {} x etp {}) = {}, and dp = {}; choose ep x etp = tp x cp = {}",
        s.pp, stage, s.ep, s.etp, stage / both, s.dp, std::int64_t{s.tp} * s.cp));
  }
  if (!problems.empty()) throw ConfigError(problems);
  WEFT_CHECK(rank >= 0 && rank < world, "rank {} of {}", rank, world);
}

}  // namespace

const char* name_of(Axis axis) {
  switch (axis) {
    case Axis::kTp:
      return "tp";
    case Axis::kCp:
      return "cp";
    case Axis::kDp:
      return "dp";
    case Axis::kPp:
      return "pp";
    case Axis::kEtp:
      return "etp";
    case Axis::kEp:
      return "ep";
    case Axis::kEdp:
      return "edp";
  }
  return "?";
}

Mesh::Mesh(const MeshSizes& sizes, int rank) : sizes_(sizes), rank_(rank) {
  if (sizes_.etp == 0) sizes_.etp = sizes_.tp;
  check_sizes(sizes_, rank);
  world_ = sizes_.tp * sizes_.cp * sizes_.dp * sizes_.pp;
  edp_ = world_ / (sizes_.etp * sizes_.ep * sizes_.pp);
}

int Mesh::world() const {
  return world_;
}
int Mesh::rank() const {
  return rank_;
}

int Mesh::size(Axis axis) const {
  switch (axis) {
    case Axis::kTp:
      return sizes_.tp;
    case Axis::kCp:
      return sizes_.cp;
    case Axis::kDp:
      return sizes_.dp;
    case Axis::kPp:
      return sizes_.pp;
    case Axis::kEtp:
      return sizes_.etp;
    case Axis::kEp:
      return sizes_.ep;
    case Axis::kEdp:
      return edp_;
  }
  return 0;
}

int Mesh::coordinate(Axis axis) const {
  return coordinate(axis, rank_);
}

int Mesh::coordinate(Axis axis, int rank) const {
  WEFT_CHECK(rank >= 0 && rank < world_, "rank {} of {}", rank, world_);
  int rest = rank;
  for (const GridAxis& a : grid_of(sizes_, edp_, of_expert_grid(axis))) {
    if (a.axis == axis) return rest % a.size;
    rest /= a.size;
  }
  return 0;
}

std::vector<int> Mesh::group(const std::vector<Axis>& axes) const {
  const GridView view = masked(sizes_, edp_, axes);
  int first = rank_, stride = 1;
  for (std::size_t i = 0; i < view.grid.size(); ++i) {
    const int size = view.grid[i].size;
    if (view.masked[i]) first -= rank_ / stride % size * stride;
    stride *= size;
  }
  std::vector<int> ranks = offsets(view, true);
  for (int& r : ranks) r += first;
  return ranks;
}

std::vector<std::vector<int>> Mesh::groups(const std::vector<Axis>& axes) const {
  const GridView view = masked(sizes_, edp_, axes);
  const std::vector<int> members = offsets(view, true);
  std::vector<std::vector<int>> all;
  for (const int first : offsets(view, false)) {
    std::vector<int>& ranks = all.emplace_back(members);
    for (int& r : ranks) r += first;
  }
  return all;
}

std::string Mesh::describe(int rank) const {
  std::string text =
      fmt::format("rank {} (tp {}, cp {}, dp {}, pp {}", rank, coordinate(Axis::kTp, rank),
                  coordinate(Axis::kCp, rank), coordinate(Axis::kDp, rank), coordinate(Axis::kPp, rank));
  if (sizes_.ep > 1) text += fmt::format(", ep {}", coordinate(Axis::kEp, rank));
  return text + ")";
}

}  // namespace weft
