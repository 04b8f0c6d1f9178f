// Pieces of flat memory that one operation visits together: an update of all parameters, or their norm, is
// one kernel and not one for each of hundreds.
#pragma once

#include <vector>

#include "core/lane.hpp"

namespace weft::ops {

struct FlatPiece {
  std::int64_t owned = 0;   // first element, in memory that holds only what this rank owns (master, moments)
  std::int64_t offset = 0;  // first element, in memory that holds everything (gradients, weights)
  std::int64_t elems = 0;
  std::int64_t tag = 0;  // the operation's: whether weights decay, or which sum a piece belongs to
};

class FlatPieces {
 public:
  // Takes memory for a device's copy of the list from the lane (none on the CPU): for `most` chunks, so that
  // ranks whose lists differ take the same; 0: for what there is.
  FlatPieces(Lane& lane, std::vector<FlatPiece> pieces, std::int64_t most = 0);
  // The most chunks that this many pieces can have, of so many elements together.
  static std::int64_t most_chunks(std::int64_t elems, std::size_t pieces) {
    return elems / kChunk + static_cast<std::int64_t>(pieces);
  }

  const std::vector<FlatPiece>& list() const { return list_; }
  std::int64_t owned_end() const { return owned_end_; }
  std::int64_t offset_end() const { return offset_end_; }

  // The list again, in pieces of at most kChunk elements: [n, 4] i64 {owned, offset, elems, tag} in the
  // device's memory, undefined on the CPU. One block of threads takes one.
  static constexpr std::int64_t kChunk = 32768;
  const Tensor& chunks() const { return chunks_; }
  std::int64_t most() const { return most_; }  // chunks that there is memory for

 private:
  std::vector<FlatPiece> list_;
  std::int64_t owned_end_ = 0, offset_end_ = 0, most_ = 0;
  Tensor chunks_;
};

// out [n] f64 = Σ x² over the pieces with tag 0 .. n − 1, of flat memory x (`offset` counts).
void sums_of_squares(Lane& lane, const FlatPieces& pieces, const Tensor& x, const Tensor& out);

}  // namespace weft::ops
