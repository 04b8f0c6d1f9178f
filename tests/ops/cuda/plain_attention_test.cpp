#include "ops/cuda/plain_attention.hpp"

#include "ops/cuda/gpu.hpp"

namespace weft {
namespace {

using namespace test;
using ops::AttentionOptions;
using ops::AttentionResult;

struct Case {
  std::int64_t queries, keys, batch, q_heads, kv_heads;
  int head_dim;
  bool causal = true;
  std::int64_t offset = 0;
  double dropout = 0;
};

class CudaPlainAttention : public OnGpu {
 protected:
  struct Inputs {
    Tensor q, k, v, dout;
  };
  struct Gradients {
    Tensor dq, dk, dv;
  };

  AttentionOptions options_of(const Case& c) {
    AttentionOptions o;
    o.head_dim = c.head_dim;
    o.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    o.causal = c.causal;
    o.query_offset = c.offset;
    o.dropout = c.dropout;
    o.dropout_key = RandomKey{5}.with("attention");
    o.first_head = 3;
    if (c.dropout > 0) {
      o.sample_ids = cpu().alloc(DType::kI64, {c.batch}, "samples");
      for (std::int64_t b = 0; b < c.batch; ++b) {
        set_element(o.sample_ids, b, static_cast<double>(1000 + 7 * b));
      }
    }
    return o;
  }
  AttentionOptions on_gpu(AttentionOptions o) {
    o.sample_ids = to_gpu(o.sample_ids);
    return o;
  }
  // q with an odd stride, or packed with k and v as a packed qkv is; k and v in one packed tensor.
  Inputs inputs_of(DType dtype, const Case& c, bool packed) {
    const std::int64_t wq = c.q_heads * c.head_dim, wk = c.kv_heads * c.head_dim;
    const Tensor dout = to_gpu(random(cpu(), dtype, {c.queries, c.batch, wq}, 3));
    if (packed) {
      const Tensor qkv = to_gpu(random(cpu(), dtype, {c.queries, c.batch, wq + 2 * wk}, 1));
      return {qkv.slice_columns(0, wq), qkv.slice_columns(wq, wk), qkv.slice_columns(wq + wk, wk), dout};
    }
    const Tensor kv = to_gpu(random(cpu(), dtype, {c.keys, c.batch, 2 * wk}, 2));
    return {to_gpu(random_strided(cpu(), dtype, {c.queries, c.batch, wq}, 1)), kv.slice_columns(0, wk),
            kv.slice_columns(wk, wk), dout};
  }
  AttentionResult forward(const Inputs& in, const AttentionOptions& o) {
    const std::int64_t heads = in.q.columns() / o.head_dim;
    const Tensor lse = gpu().alloc(accumulator_of(in.q.dtype()), {in.q.dim(1), heads, in.q.dim(0)}, "lse");
    ops::fill(gpu(), lse, std::nan(""));
    const Tensor out = gpu().alloc(in.q.dtype(), in.q.shape(), "out");
    ops::fill(gpu(), out, std::nan(""));
    AttentionResult r{out, lse};
    ops::cuda::plain_attention(gpu(), in.q, in.k, in.v, on_gpu(o), r);
    return r;
  }
  // Into views of one tensor where the shapes allow it.
  Gradients backward(const Inputs& in, const AttentionResult& r, const AttentionOptions& o) {
    const std::int64_t wq = in.q.columns(), wk = in.k.columns(), b = in.q.dim(1);
    const auto nans = [&](const Shape& shape) {
      const Tensor x = gpu().alloc(in.q.dtype(), shape, "gradient");
      ops::fill(gpu(), x, std::nan(""));
      return x;
    };
    Gradients g;
    if (in.q.dim(0) == in.k.dim(0)) {
      const Tensor all = nans({in.q.dim(0), b, wq + 2 * wk});
      g = {all.slice_columns(0, wq), all.slice_columns(wq, wk), all.slice_columns(wq + wk, wk)};
    } else {
      g = {nans(in.q.shape()), nans(in.k.shape()), nans(in.v.shape())};
    }
    const Tensor scratch =
        gpu().alloc(DType::kU8, {ops::cuda::plain_attention_backward_scratch(in.q, in.k, o)}, "scratch");
    ops::cuda::plain_attention_backward(gpu(), in.dout, in.q, in.k, in.v, r, on_gpu(o), g.dq, g.dk, g.dv,
                                        scratch);
    return g;
  }

  void check(DType dtype, const Case& c, bool packed) {
    SCOPED_TRACE(fmt::format("{} s{} sk{} b{} h{}/{} d{} causal {} offset {} dropout {} packed {}",
                             name_of(dtype), c.queries, c.keys, c.batch, c.q_heads, c.kv_heads, c.head_dim,
                             c.causal, c.offset, c.dropout, packed));
    const double fine = rounding(accumulator_of(dtype));
    const AttentionOptions o = options_of(c);
    const Inputs in = inputs_of(dtype, c, packed);
    const Inputs in64{wide(in.q), wide(in.k), wide(in.v), wide(in.dout)};
    const AttentionResult r64 = ops::attention(cpu(), in64.q, in64.k, in64.v, o);
    const AttentionResult r = forward(in, o);
    expect_close(r.out, r64.out, std::max(rounding(dtype), 2 * fine), "out");
    expect_close(r.lse, r64.lse, 2 * fine, "lse");
    Gradients g64{zeros(cpu(), DType::kF64, in.q.shape()), zeros(cpu(), DType::kF64, in.k.shape()),
                  zeros(cpu(), DType::kF64, in.v.shape())};
    ops::attention_backward(cpu(), in64.dout, in64.q, in64.k, in64.v, r64, o, g64.dq, g64.dk, g64.dv);
    const Gradients g = backward(in, r, o);
    // `out` was rounded to the type, and the sum with dout sees that.
    const double tolerance = std::max(2 * rounding(dtype), 5 * fine);
    if (c.keys > 1) {  // else nothing but rounding
      expect_close(g.dq, g64.dq, tolerance, "dq");
      expect_close(g.dk, g64.dk, tolerance, "dk");
    }
    expect_close(g.dv, g64.dv, tolerance, "dv");
    const AttentionResult again = forward(in, o);
    EXPECT_TRUE(same_bits(to_cpu(again.out), to_cpu(r.out)));
    EXPECT_TRUE(same_bits(to_cpu(again.lse), to_cpu(r.lse)));
    const Gradients h = backward(in, again, o);
    EXPECT_TRUE(same_bits(to_cpu(h.dq), to_cpu(g.dq)));
    EXPECT_TRUE(same_bits(to_cpu(h.dk), to_cpu(g.dk)));
    EXPECT_TRUE(same_bits(to_cpu(h.dv), to_cpu(g.dv)));
  }
};

TEST_F(CudaPlainAttention, HeadSizes) {
  for (const DType dtype : kFloating) {
    for (const int d : {1, 3, 16, 64, 72, 80, 128, 132, 200, 256}) {
      check(dtype, {70, 70, 2, 4, 2, d}, true);
      check(dtype, {33, 95, 1, 2, 1, d, true, 62}, false);
    }
  }
}

// Tiles with and without tails, several tiles, few queries over many keys, and the other way round.
TEST_F(CudaPlainAttention, Shapes) {
  const std::vector<Case> cases = {{1, 1, 1, 1, 1, 16},
                                   {3, 3, 2, 4, 2, 8},
                                   {64, 64, 2, 3, 3, 64},
                                   {65, 65, 2, 2, 1, 16},
                                   {200, 200, 1, 6, 2, 64},
                                   {130, 130, 1, 2, 2, 64, false},
                                   {5, 133, 2, 4, 1, 16, false},
                                   {150, 20, 1, 2, 1, 16, false},
                                   {1, 150, 2, 4, 4, 40, true, 149},
                                   {1, 97, 1, 8, 2, 16, true, 96},
                                   {100, 300, 1, 2, 1, 32, true, 200},
                                   {20, 40, 70, 1, 1, 8, true, 20},
                                   {40, 40, 2, 4, 2, 8, true, 0, 0.25},
                                   {140, 140, 1, 4, 1, 64, false, 0, 0.1},
                                   {33, 100, 1, 2, 1, 12, true, 67, 0.1},
                                   {10, 10, 67, 2, 1, 8, true, 0, 0.5}};
  for (const DType dtype : kFloating) {
    for (const Case& c : cases) {
      check(dtype, c, false);
      if (c.queries == c.keys) check(dtype, c, true);
    }
  }
}

TEST_F(CudaPlainAttention, LargeScoresStayFinite) {
  const Case c{66, 66, 1, 1, 1, 16};
  const AttentionOptions o = options_of(c);
  Inputs in = inputs_of(DType::kF32, c, false);
  ops::scale_in_place(gpu(), in.q, 300);
  const AttentionResult r = forward(in, o);
  const AttentionResult r64 = ops::attention(cpu(), wide(in.q), wide(in.k), wide(in.v), o);
  expect_close(r.lse, r64.lse, 1e-6, "lse");
  expect_close(r.out, r64.out, 1e-3, "out");
}

TEST_F(CudaPlainAttention, RowsThatSeeNothingAreZero) {
  for (const std::int64_t blind : {3, 70}) {
    const Case c{80, 80, 1, 1, 1, 8, true, -blind};
    const AttentionOptions o = options_of(c);
    const Inputs in = inputs_of(DType::kF32, c, false);
    const AttentionResult r = forward(in, o);
    const Gradients g = backward(in, r, o);
    const Tensor out = to_cpu(r.out), dq = to_cpu(g.dq), lse = to_cpu(r.lse);
    for (std::int64_t i = 0; i < blind * 8; ++i) {
      ASSERT_EQ(element(out, i), 0);
      ASSERT_EQ(element(dq, i), 0);
      ASSERT_EQ(element(lse, i / 8), -std::numeric_limits<double>::infinity());
    }
    for (const Tensor& x : {g.dq, g.dk, g.dv, r.out}) {
      for (const double v : values_of(to_cpu(x))) ASSERT_TRUE(std::isfinite(v));
    }
    for (std::int64_t key = 80 - blind; key < 80; ++key) ASSERT_EQ(element(to_cpu(g.dv), key * 8), 0);
  }
}

TEST_F(CudaPlainAttention, NotANumberStaysSo) {
  for (const Case& c : {Case{70, 70, 1, 1, 1, 8}, Case{2, 2, 1, 1, 1, 8}}) {
    const std::int64_t key = c.keys - 2;
    Tensor k = random(cpu(), DType::kF32, {c.keys, 1, 8}, 1);
    set_element(k, key * 8 + 3, std::nan(""));
    const Tensor q = to_gpu(random(cpu(), DType::kF32, {c.queries, 1, 8}, 2)),
                 v = to_gpu(random(cpu(), DType::kF32, {c.keys, 1, 8}, 3));
    const Tensor out = to_cpu(forward({q, to_gpu(k), v, {}}, options_of(c)).out);
    for (std::int64_t i = 0; i < out.elems(); ++i) {
      EXPECT_EQ(std::isnan(element(out, i)), i / 8 >= key) << i;
    }
  }
}

// A head's result does not depend on the others beside it: what tensor parallelism relies on.
TEST_F(CudaPlainAttention, HeadsAreIndependent) {
  const Case c{75, 75, 3, 4, 2, 16, true, 0, 0.2};
  const Inputs in = inputs_of(DType::kF32, c, false);
  const AttentionOptions o = options_of(c);
  AttentionOptions half = o;
  half.first_head += 2;
  const AttentionResult whole = forward(in, o);
  const AttentionResult part =
      forward({in.q.slice_columns(32, 32), in.k.slice_columns(16, 16), in.v.slice_columns(16, 16), {}}, half);
  EXPECT_TRUE(same_bits(to_cpu(part.out), to_cpu(whole.out.slice_columns(32, 32))));
}

}  // namespace
}  // namespace weft
