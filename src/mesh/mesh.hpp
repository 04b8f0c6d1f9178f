// Mesh: which rank does what. Pure arithmetic over two grids of the same world (SEMANTICS: Megatron's rank
// order, leftmost fastest): dense (tp, cp, dp, pp) and expert (etp, ep, edp, pp). Every size is at least 1.
#pragma once

#include <string>
#include <vector>

namespace weft {

enum class Axis { kTp, kCp, kDp, kPp, kEtp, kEp, kEdp };
const char* name_of(Axis axis);

struct MeshSizes {
  int tp = 1, cp = 1, dp = 1, pp = 1;
  int ep = 1, etp = 0;        // etp 0: as tp
  bool pp_before_dp = false;  // --use-tp-pp-dp-mapping: tp-cp-pp-dp in place of tp-cp-dp-pp
};

class Mesh {
 public:
  // Throws ConfigError listing every size that does not divide. As in Megatron, pp_before_dp with pp > 1
  // needs edp = dp (ep * etp = tp * cp): else a stage would have other ranks in the expert grid than in the
  // dense one.
  Mesh(const MeshSizes& sizes, int rank);

  int world() const;
  int rank() const;
  int size(Axis axis) const;
  int coordinate(Axis axis) const;
  int coordinate(Axis axis, int rank) const;

  // The ranks that share every coordinate but those of `axes` with this rank (axes of one grid), ascending by
  // the masked coordinates with the leftmost axis fastest: group({kDp, kCp}) is the gradient-reduction group.
  std::vector<int> group(const std::vector<Axis>& axes) const;
  // Every group of that kind in the world, in the order Megatron creates them.
  std::vector<std::vector<int>> groups(const std::vector<Axis>& axes) const;

  // "rank 5 (tp 1, cp 0, dp 0, pp 1)"
  std::string describe(int rank) const;

 private:
  MeshSizes sizes_;
  int rank_ = 0, world_ = 1, edp_ = 1;
};

}  // namespace weft
