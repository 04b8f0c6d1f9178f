// Attention of a few new positions to a key/value cache, as generation asks for it.
#include "ops/attention.hpp"
#include "ops/cuda/cudnn_attention.hpp"
#include "ops/cuda/gpu.hpp"

namespace weft {
namespace {

using namespace test;
using ops::AttentionOptions;
using ops::AttentionResult;

struct Case {
  std::int64_t queries, seen, batch, q_heads, kv_heads;
  int head_dim;
};

class CudaCachedAttention : public OnGpu {
 protected:
  static AttentionOptions options_of(const Case& c) {
    AttentionOptions o;
    o.head_dim = c.head_dim;
    o.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    o.query_offset = c.seen;
    o.recurs = false;
    return o;
  }

  void check(DType dtype, const Case& c) {
    SCOPED_TRACE(fmt::format("{} s{} after {} b{} h{}/{} d{}", name_of(dtype), c.queries, c.seen, c.batch,
                             c.q_heads, c.kv_heads, c.head_dim));
    const std::int64_t wq = c.q_heads * c.head_dim, wk = c.kv_heads * c.head_dim, keys = c.seen + c.queries;
    // q lies in a packed qkv. The cache goes on after the keys, with NaNs.
    const Tensor qkv = to_gpu(random(cpu(), dtype, {c.queries, c.batch, wq + 2 * wk}, 1));
    const Tensor q = qkv.slice_columns(0, wq);
    const auto cache = [&](std::uint64_t seed) {
      Tensor all = gpu().alloc(dtype, {keys + 9, c.batch, wk}, "cache");
      ops::fill(gpu(), all, std::nan(""));
      ops::copy(gpu(), to_gpu(random(cpu(), dtype, {keys, c.batch, wk}, seed)), all.slice(0, keys));
      return all;
    };
    const Tensor k = cache(2).slice(0, keys), v = cache(3).slice(0, keys);
    const AttentionOptions o = options_of(c);
    const AttentionResult r = ops::attention(gpu(), q, k, v, o);
    const AttentionResult exact = ops::attention(cpu(), wide(q), wide(k), wide(v), o);
    const double fine = rounding(accumulator_of(dtype));
    expect_close(r.out, exact.out, std::max(rounding(dtype), 2 * fine), "out");
    expect_close(r.lse, exact.lse, 2 * fine, "lse");
    // The CPU's twin of the same type: the same but for the rounding.
    const AttentionResult twin = ops::attention(cpu(), to_cpu(q), to_cpu(k), to_cpu(v), o);
    expect_close(r.out, twin.out, std::max(2 * rounding(dtype), 4 * fine), "out of the twin");
    EXPECT_TRUE(same_bits(to_cpu(ops::attention(gpu(), q, k, v, o).out), to_cpu(r.out)));
  }
};

TEST_F(CudaCachedAttention, EqualsTheTwin) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const std::int64_t queries : {1, 3, 256}) {
      for (const std::int64_t seen : {0, 1, 63, 64, 500}) {
        check(dtype, {queries, seen, 1, 4, 4, 64});
        check(dtype, {queries, seen, 3, 8, 2, 128});
        check(dtype, {queries, seen, 2, 6, 1, 40});
      }
    }
  }
}

// A piece of a prompt after the other gives what the whole gives at once.
TEST_F(CudaCachedAttention, PieceByPieceIsTheWhole) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::int64_t s = 300, b = 2;
    const Tensor q = to_gpu(random(cpu(), dtype, {s, b, 256}, 1)),
                 k = to_gpu(random(cpu(), dtype, {s, b, 128}, 2)),
                 v = to_gpu(random(cpu(), dtype, {s, b, 128}, 3));
    AttentionOptions o = options_of({s, 0, b, 4, 2, 64});
    const Tensor whole = to_cpu(ops::attention(gpu(), q, k, v, o).out);
    for (std::int64_t first = 0; first < s;) {
      const std::int64_t count = std::min<std::int64_t>(first == 0 ? 256 : 1 + first % 3, s - first);
      o.query_offset = first;
      const Tensor part = ops::attention(gpu(), q.slice(first, count), k.slice(0, first + count),
                                         v.slice(0, first + count), o)
                              .out;
      ASSERT_TRUE(same_bits(to_cpu(part), whole.slice(first, count))) << first;
      first += count;
    }
  }
}

// Lengths that never come again go past cuDNN, which would build a plan for each.
TEST(CachedAttentionChoice, NotCudnn) {
  Bench meta(Arena::meta(DeviceKind::kCuda));
  const Tensor q = meta.lane.alloc(DType::kBF16, {64, 2, 512}, "q");
  AttentionOptions o;
  o.head_dim = 64;
  EXPECT_TRUE(ops::cuda::cudnn_attention_takes(q, q, o));
  o.recurs = false;
  EXPECT_FALSE(ops::cuda::cudnn_attention_takes(q, q, o));
}

}  // namespace
}  // namespace weft
