#include "nn/chunked_border.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace weft::nn {
namespace {

// Several collectives that are done together.
class Together final : public Operation {
 public:
  explicit Together(std::vector<Async<Tensor>> parts) : parts_(std::move(parts)) {}
  void wait(Lane& lane) override {
    for (Async<Tensor>& part : parts_) part.wait(lane);
    parts_.clear();
  }
  // Each part knows whether an exception is in flight.
  void cancel() noexcept override { parts_.clear(); }
  void dropped() noexcept override { parts_.clear(); }

 private:
  std::vector<Async<Tensor>> parts_;
};

Tensor rows_of(const Tensor& x, const Rows& rows) {
  return x.slice(rows.begin, rows.count);
}

Shape with_rows(const Tensor& x, std::int64_t rows) {
  Shape shape = x.shape();
  shape.set(0, rows);
  return shape;
}

// product for each range of rows inside that the chunk's tensor x holds.
void for_pieces(const Chunk& chunk, const Tensor& x, const ChunkedBorder::Product& product) {
  std::int64_t row = 0;
  for (const Rows& inside : chunk.inside) {
    product(inside, x.slice(row, inside.count));
    row += inside.count;
  }
}

}  // namespace

ChunkedBorder::ChunkedBorder(const TensorParallelBorder& whole, int chunks) : whole_(whole), chunks_(chunks) {
  WEFT_CHECK(chunks >= 1, "a border crossed in {} chunks", chunks);
}

std::vector<Rows> ChunkedBorder::cut(std::int64_t s) const {
  const std::int64_t chunks = tp().size() == 1 ? 1 : chunks_;
  const std::int64_t rows = std::max<std::int64_t>((s + chunks - 1) / chunks, 1);
  std::vector<Rows> all;
  for (std::int64_t begin = 0; begin < std::max<std::int64_t>(s, 1); begin += rows) {
    all.push_back({begin, std::min(rows, s - begin)});
  }
  return all;
}

void ChunkedBorder::spread_to(Lane& lane, const Tensor& x, const Product& product) const {
  const std::vector<Chunk> chunks = spread_chunks(x.dim(0));
  Async<Tensor> next = spread(lane, x, chunks[0]);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const Tensor ready = next.wait(lane);
    if (c + 1 < chunks.size()) next = spread(lane, x, chunks[c + 1]);
    for_pieces(chunks[c], ready, product);
  }
}

Tensor ChunkedBorder::spread_whole_to(Lane& lane, const Tensor& x, const Product& product) const {
  Tensor full = spread_memory(lane, x);
  const std::vector<Chunk> chunks = spread_chunks(x.dim(0));
  Async<Tensor> next = spread_into(lane, x, chunks[0], full);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    next.wait(lane);
    if (c + 1 < chunks.size()) next = spread_into(lane, x, chunks[c + 1], full);
    for (const Rows& inside : chunks[c].inside) product(inside, rows_of(full, inside));
  }
  return full;
}

Async<Tensor> ChunkedBorder::combine_from(Lane& lane, DType dtype, const Shape& outside,
                                          const Product& product) const {
  const Tensor out = lane.alloc(dtype, outside, "chunked sum over tensor-parallel ranks");
  std::vector<Async<Tensor>> running;
  for (const Chunk& chunk : combine_chunks(out.dim(0))) {
    const Tensor partial = partial_memory(lane, out, chunk);
    for_pieces(chunk, partial, product);
    running.push_back(combine(lane, partial, out, chunk));
  }
  return {out, std::make_unique<Together>(std::move(running))};
}

std::vector<Chunk> ChunkedReplicatedBorder::spread_chunks(std::int64_t s) const {
  return {{{0, s}, {{0, s}}}};
}

std::vector<Chunk> ChunkedReplicatedBorder::combine_chunks(std::int64_t s) const {
  std::vector<Chunk> chunks;
  for (const Rows& rows : cut(s)) chunks.push_back({rows, {rows}});
  return chunks;
}

Async<Tensor> ChunkedReplicatedBorder::spread(Lane&, const Tensor& x, const Chunk& chunk) const {
  return Async<Tensor>(rows_of(x, chunk.outside));
}

Tensor ChunkedReplicatedBorder::spread_memory(Lane&, const Tensor& x) const {
  return x;
}

Async<Tensor> ChunkedReplicatedBorder::spread_into(Lane&, const Tensor&, const Chunk&,
                                                   const Tensor& full) const {
  return Async<Tensor>(full);
}

Tensor ChunkedReplicatedBorder::partial_memory(Lane&, const Tensor& out, const Chunk& chunk) const {
  return rows_of(out, chunk.outside);  // summed in place
}

Async<Tensor> ChunkedReplicatedBorder::combine(Lane& lane, const Tensor& partial, const Tensor&,
                                               const Chunk&) const {
  return tp().all_reduce(lane, partial);
}

std::vector<Chunk> ChunkedSequenceParallelBorder::spread_chunks(std::int64_t s) const {
  std::vector<Chunk> chunks;
  for (const Rows& rows : cut(s)) {
    Chunk chunk{rows, {}};
    for (std::int64_t r = 0; r < tp().size(); ++r) chunk.inside.push_back({r * s + rows.begin, rows.count});
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

Async<Tensor> ChunkedSequenceParallelBorder::spread(Lane& lane, const Tensor& x, const Chunk& chunk) const {
  return tp().all_gather(lane, rows_of(x, chunk.outside));
}

Tensor ChunkedSequenceParallelBorder::spread_memory(Lane& lane, const Tensor& x) const {
  if (tp().size() == 1) return x;
  return lane.alloc(x.dtype(), with_rows(x, inside(x.dim(0))), "chunked all_gather");
}

Async<Tensor> ChunkedSequenceParallelBorder::spread_into(Lane& lane, const Tensor& x, const Chunk& chunk,
                                                         const Tensor& full) const {
  // `full` as a matrix with one row per rank: there the chunk is a range of columns.
  const std::int64_t ranks = tp().size(), row = full.elems() / std::max<std::int64_t>(full.dim(0), 1);
  const Tensor place = full.view({ranks, full.elems() / ranks})
                           .slice_columns(chunk.outside.begin * row, chunk.outside.count * row);
  const Tensor own = rows_of(x, chunk.outside);
  return tp().all_gather_into(lane, own.view({1, own.elems()}), place);
}

Tensor ChunkedSequenceParallelBorder::partial_memory(Lane& lane, const Tensor& out,
                                                     const Chunk& chunk) const {
  if (tp().size() == 1) return rows_of(out, chunk.outside);
  return lane.alloc(out.dtype(), with_rows(out, inside(chunk.outside.count)), "chunked partial sums");
}

Async<Tensor> ChunkedSequenceParallelBorder::combine(Lane& lane, const Tensor& partial, const Tensor& out,
                                                     const Chunk& chunk) const {
  return tp().reduce_scatter_into(lane, partial, rows_of(out, chunk.outside));
}

}  // namespace weft::nn
