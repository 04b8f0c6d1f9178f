// The border of a tensor-parallel region, crossed in chunks of the sequence, so that one chunk's
// communication runs while another's matrix product does. Every chunk is the same collective as the whole
// would be, on fewer rows: sums are taken in the same order, and no bit differs from TensorParallelBorder's.
//
// s is cut outside the region, where each rank has s/tp rows under sequence parallel; inside, chunk
// [begin, begin + n) is rows [r · s/tp + begin, ... + n) of every rank r.
#pragma once

#include <functional>
#include <vector>

#include "nn/tensor_parallel.hpp"

namespace weft::nn {

// Indices [begin, begin + count) of dim 0.
struct Rows {
  std::int64_t begin = 0, count = 0;
};

struct Chunk {
  Rows outside;
  std::vector<Rows> inside;  // in the order in which a tensor of this chunk alone holds them
};

class ChunkedBorder {
 public:
  // `whole` outlives this. At most `chunks` chunks of equal size (the last may be smaller); one where there
  // is nothing to hide. Costs chunks − 1 more latencies than the whole; gains where a chunk's product takes
  // about as long as its communication.
  ChunkedBorder(const TensorParallelBorder& whole, int chunks);
  virtual ~ChunkedBorder() = default;
  const TensorParallelBorder& whole() const { return whole_; }

  // Sequence length inside the region for s outside.
  virtual std::int64_t inside(std::int64_t s) const = 0;

  // A product over some rows inside the region: reads them from `rows` (spread_to) or writes them to it
  // (combine_from).
  using Product = std::function<void(const Rows& inside, const Tensor& rows)>;

  // x [s, ...] outside -> product(its rows inside), chunk by chunk: chunk c + 1 is under way while the
  // products of chunk c run, so that 2 / chunks of x inside is held at a time.
  void spread_to(Lane& lane, const Tensor& x, const Product& product) const;
  // The same, and returns all of x inside, which takes the memory of TensorParallelBorder::spread. x is
  // contiguous.
  Tensor spread_whole_to(Lane& lane, const Tensor& x, const Product& product) const;
  // The sum over ranks of a product, [s, ...] outside: each chunk's sum runs under the products that follow
  // it, and what still runs at the end is waited for with the result. Holds the partial sums of what is under
  // way, together at most the product's rows inside, and the result: the bytes of the whole form.
  Async<Tensor> combine_from(Lane& lane, DType dtype, const Shape& outside, const Product& product) const;

 protected:
  Communicator& tp() const { return whole_.tp(); }
  // Equal chunks of [0, s); at least one.
  std::vector<Rows> cut(std::int64_t s) const;

  // The chunks in which x [s, ...] outside the region is spread; of a result [s, ...] that is combined.
  virtual std::vector<Chunk> spread_chunks(std::int64_t s) const = 0;
  virtual std::vector<Chunk> combine_chunks(std::int64_t s) const = 0;
  // One chunk of x into the region, in memory of its own.
  virtual Async<Tensor> spread(Lane& lane, const Tensor& x, const Chunk& chunk) const = 0;
  // The memory for all of x inside the region, and one chunk into its place there.
  virtual Tensor spread_memory(Lane& lane, const Tensor& x) const = 0;
  virtual Async<Tensor> spread_into(Lane& lane, const Tensor& x, const Chunk& chunk,
                                    const Tensor& full) const = 0;
  // The memory for a chunk's partial sums, and their sum over ranks into the chunk's rows of `out` [s, ...].
  virtual Tensor partial_memory(Lane& lane, const Tensor& out, const Chunk& chunk) const = 0;
  virtual Async<Tensor> combine(Lane& lane, const Tensor& partial, const Tensor& out,
                                const Chunk& chunk) const = 0;

 private:
  const TensorParallelBorder& whole_;
  int chunks_;
};

// All-reduce by chunks. Spreading is the identity: one chunk.
class ChunkedReplicatedBorder final : public ChunkedBorder {
 public:
  ChunkedReplicatedBorder(const ReplicatedBorder& whole, int chunks) : ChunkedBorder(whole, chunks) {}
  std::int64_t inside(std::int64_t s) const override { return s; }

 protected:
  std::vector<Chunk> spread_chunks(std::int64_t s) const override;
  std::vector<Chunk> combine_chunks(std::int64_t s) const override;
  Async<Tensor> spread(Lane& lane, const Tensor& x, const Chunk& chunk) const override;
  Tensor spread_memory(Lane& lane, const Tensor& x) const override;
  Async<Tensor> spread_into(Lane& lane, const Tensor& x, const Chunk& chunk,
                            const Tensor& full) const override;
  Tensor partial_memory(Lane& lane, const Tensor& out, const Chunk& chunk) const override;
  Async<Tensor> combine(Lane& lane, const Tensor& partial, const Tensor& out,
                        const Chunk& chunk) const override;
};

// All-gather and reduce-scatter along s by chunks of the shard.
class ChunkedSequenceParallelBorder final : public ChunkedBorder {
 public:
  ChunkedSequenceParallelBorder(const SequenceParallelBorder& whole, int chunks)
      : ChunkedBorder(whole, chunks) {}
  std::int64_t inside(std::int64_t s) const override { return s * tp().size(); }

 protected:
  std::vector<Chunk> spread_chunks(std::int64_t s) const override;
  std::vector<Chunk> combine_chunks(std::int64_t s) const override { return spread_chunks(s); }
  Async<Tensor> spread(Lane& lane, const Tensor& x, const Chunk& chunk) const override;
  Tensor spread_memory(Lane& lane, const Tensor& x) const override;
  Async<Tensor> spread_into(Lane& lane, const Tensor& x, const Chunk& chunk,
                            const Tensor& full) const override;
  Tensor partial_memory(Lane& lane, const Tensor& out, const Chunk& chunk) const override;
  Async<Tensor> combine(Lane& lane, const Tensor& partial, const Tensor& out,
                        const Chunk& chunk) const override;
};

}  // namespace weft::nn
