#include "ops/cuda/cudnn_attention.hpp"

#include "ops/attention.hpp"
#include "ops/cuda/gpu.hpp"

namespace weft {
namespace {

using namespace test;
using ops::AttentionOptions;
using ops::AttentionResult;

struct Case {
  std::int64_t s, keys, b, heads, kv_heads;
  int d;
  bool causal = true;
  std::int64_t offset = 0, window = 0;
};

std::string text(const Case& c, DType dtype, bool packed) {
  return fmt::format("{} s {}/{} b {} heads {}/{} d {}{}{} offset {} window {}", name_of(dtype), c.s, c.keys,
                     c.b, c.heads, c.kv_heads, c.d, c.causal ? " causal" : "", packed ? " packed" : "",
                     c.offset, c.window);
}

AttentionOptions options_of(const Case& c, bool deterministic = false) {
  AttentionOptions o;
  o.head_dim = c.d;
  o.scale = 1 / std::sqrt(static_cast<double>(c.d));
  o.causal = c.causal;
  o.query_offset = c.offset;
  o.window = c.window;
  o.deterministic = deterministic;
  return o;
}

class CudnnAttention : public OnGpu {
 protected:
  struct Inputs {
    Tensor q, k, v, dout;
  };
  struct Gradients {
    Tensor all;  // of packed ones
    Tensor dq, dk, dv;
  };

  // q, k and v: columns of one tensor, as a packed qkv projection leaves them, or apart.
  Inputs inputs(const Case& c, DType dtype, bool packed) {
    const std::int64_t q = c.heads * c.d, kv = c.kv_heads * c.d;
    Inputs in;
    if (packed) {
      const Tensor all = to_gpu(random(cpu(), DType::kF32, {c.s, c.b, q + 2 * kv}, 1), dtype);
      in.q = all.slice_columns(0, q);
      in.k = all.slice_columns(q, kv);
      in.v = all.slice_columns(q + kv, kv);
    } else {
      in.q = to_gpu(random(cpu(), DType::kF32, {c.s, c.b, q}, 1), dtype);
      in.k = to_gpu(random(cpu(), DType::kF32, {c.keys, c.b, kv}, 2), dtype);
      in.v = to_gpu(random(cpu(), DType::kF32, {c.keys, c.b, kv}, 3), dtype);
    }
    in.dout = to_gpu(random(cpu(), DType::kF32, {c.s, c.b, q}, 4), dtype);
    return in;
  }

  // Into memory of NaNs.
  Gradients backward(const Case& c, const Inputs& in, const AttentionResult& forward,
                     const AttentionOptions& options, bool packed) {
    const std::int64_t q = c.heads * c.d, kv = c.kv_heads * c.d;
    Gradients g;
    const auto blank = [&](std::int64_t rows, std::int64_t columns) {
      const Tensor x = gpu().alloc(in.q.dtype(), {rows, c.b, columns}, "test");
      ops::fill(gpu(), x, std::nan(""));
      return x;
    };
    if (packed) {
      g.all = blank(c.s, q + 2 * kv);
      g.dq = g.all.slice_columns(0, q);
      g.dk = g.all.slice_columns(q, kv);
      g.dv = g.all.slice_columns(q + kv, kv);
    } else {
      g.dq = blank(c.s, q);
      g.dk = blank(c.keys, kv);
      g.dv = blank(c.keys, kv);
    }
    ops::attention_backward(gpu(), in.dout, in.q, in.k, in.v, forward, options, g.dq, g.dk, g.dv);
    return g;
  }

  void compare(const Case& c, DType dtype, bool packed, bool deterministic = false);

  // In bf16.
  void expect_taken(const Case& c) {
    const Inputs in = inputs(c, DType::kBF16, false);
    EXPECT_TRUE(ops::cuda::cudnn_attention_takes(in.q, in.k, options_of(c))) << text(c, DType::kBF16, false);
  }
};

void CudnnAttention::compare(const Case& c, DType dtype, bool packed, bool deterministic) {
  const std::string what = text(c, dtype, packed);
  SCOPED_TRACE(what);
  const AttentionOptions options = options_of(c, deterministic);
  const Inputs in = inputs(c, dtype, packed);
  const Tensor q = wide(in.q), k = wide(in.k), v = wide(in.v), dout = wide(in.dout);
  const AttentionResult exact = ops::attention(cpu(), q, k, v, options);
  const Tensor dq = cpu().alloc(DType::kF64, q.shape(), "dq"), dk = cpu().alloc(DType::kF64, k.shape(), "dk"),
               dv = cpu().alloc(DType::kF64, v.shape(), "dv");
  ops::attention_backward(cpu(), dout, q, k, v, exact, options, dq, dk, dv);

  const AttentionResult forward = ops::attention(gpu(), in.q, in.k, in.v, options);
  const double relative = dtype == DType::kBF16 ? 1e-2 : 2e-3;
  expect_close(forward.out, exact.out, relative, "out", 4 * relative);
  expect_close(forward.lse, exact.lse, 1e-4, "lse");  // natural logarithms, of scores in f32
  const Gradients g = backward(c, in, forward, options, packed);
  // With a single key the probabilities cannot move: exactly 0, but for the rounding of what cancels.
  const bool single = k.dim(0) == 1 || c.window == 1;
  const auto expect_moved = [&](const Tensor& got, const Tensor& expected, const char* name) {
    if (!single) return expect_close(got, expected, relative, name, 4 * relative);
    for (const double x : values_of(to_cpu(got))) EXPECT_NEAR(x, 0, c.window == 1 ? 1e-3 : 1e-5) << name;
  };
  expect_moved(g.dq, dq, "dq");
  expect_moved(g.dk, dk, "dk");
  expect_close(g.dv, dv, relative, "dv", 4 * relative);

  // Again: by the plan that is there now.
  const AttentionResult again = ops::attention(gpu(), in.q, in.k, in.v, options);
  EXPECT_TRUE(same_bits(to_cpu(forward.out), to_cpu(again.out)));
  EXPECT_TRUE(same_bits(to_cpu(forward.lse), to_cpu(again.lse)));
  const Gradients other = backward(c, in, forward, options, packed);
  if (deterministic) {
    EXPECT_TRUE(same_bits(to_cpu(g.dq), to_cpu(other.dq)));
    EXPECT_TRUE(same_bits(to_cpu(g.dk), to_cpu(other.dk)));
    EXPECT_TRUE(same_bits(to_cpu(g.dv), to_cpu(other.dv)));
  } else {
    expect_moved(other.dq, dq, "dq again");
  }
}

// Odd numbers of rows beside whole tiles; groups of 1, 2 and 4; one head; packed and apart.
const std::vector<Case> kCausal = {
    {2, 2, 1, 1, 1, 64},      {17, 17, 3, 2, 2, 64},     {17, 17, 1, 1, 1, 128},
    {128, 128, 2, 4, 2, 128}, {128, 128, 1, 2, 2, 80},   {333, 333, 1, 3, 1, 80},
    {333, 333, 1, 1, 1, 64},  {1024, 1024, 1, 2, 2, 64}, {1024, 1024, 1, 4, 1, 128}};
const std::vector<Case> kWhole = {{17, 17, 2, 2, 1, 80, false},
                                  {128, 128, 1, 2, 2, 64, false},
                                  {333, 333, 1, 4, 2, 128, false},
                                  {1024, 1024, 1, 1, 1, 64, false}};

TEST_F(CudnnAttention, CausalBF16) {
  for (const Case& c : kCausal) compare(c, DType::kBF16, true);
}
TEST_F(CudnnAttention, CausalBF16Apart) {
  for (const Case& c : kCausal) compare(c, DType::kBF16, false);
}
TEST_F(CudnnAttention, CausalF16) {
  for (const Case& c : kCausal) compare(c, DType::kF16, true);
}
TEST_F(CudnnAttention, Whole) {
  for (const Case& c : kWhole) {
    compare(c, DType::kBF16, true);
    compare(c, DType::kF16, false);
  }
}
TEST_F(CudnnAttention, OtherHeadSizes) {
  for (const int d : {8, 16, 24, 32, 48, 72, 96, 104, 120}) compare({70, 70, 2, 4, 2, d}, DType::kBF16, true);
}
TEST_F(CudnnAttention, KeysOfAnotherLength) {
  compare({40, 200, 2, 4, 2, 64, false}, DType::kBF16, false);
  compare({300, 129, 1, 2, 2, 128, false}, DType::kBF16, false);
}
// The last query sees the last key.
TEST_F(CudnnAttention, QueriesAfterTheFirstKeys) {
  for (const Case& c : {Case{256, 512, 2, 4, 2, 64, true, 256}, Case{17, 40, 2, 4, 1, 80, true, 23}}) {
    expect_taken(c);
    compare(c, DType::kBF16, false);
  }
  compare({130, 333, 1, 3, 3, 128, true, 203}, DType::kF16, false);
  compare({256, 512, 2, 4, 2, 64, true, 256}, DType::kBF16, false, true);
}
TEST_F(CudnnAttention, Windows) {
  for (const std::int64_t window : {1, 100, 1000}) {
    const Case c{333, 333, 2, 4, 2, 64, true, 0, window};
    expect_taken(c);
    compare(c, DType::kBF16, true);
  }
  compare({128, 128, 1, 2, 2, 128, true, 0, 40}, DType::kF16, false);
  compare({333, 333, 2, 4, 2, 64, true, 0, 100}, DType::kBF16, true, true);
}
// Keys before the first query's window are seen by nobody: their gradients are 0, and are written.
TEST_F(CudnnAttention, WindowsAfterTheFirstKeys) {
  for (const std::int64_t window : {1, 64, 300}) {
    const Case c{200, 456, 1, 4, 2, 64, true, 256, window};
    expect_taken(c);
    compare(c, DType::kBF16, false);
  }
  compare({200, 456, 1, 4, 2, 64, true, 256, 64}, DType::kBF16, false, true);
}
TEST_F(CudnnAttention, DeterministicRepeatsItsBits) {
  for (const Case& c : {Case{333, 333, 2, 4, 2, 64}, Case{1024, 1024, 1, 2, 2, 128},
                        Case{17, 17, 1, 1, 1, 64}, Case{200, 200, 1, 3, 1, 80, false}}) {
    compare(c, DType::kBF16, true, true);
  }
}

// What goes to the other kernels must be right by them: one query, rows that are not in steps of 16 bytes.
TEST_F(CudnnAttention, WhatItDoesNotTakeIsStillRight) {
  compare({1, 1, 3, 2, 1, 64}, DType::kBF16, true);
  compare({33, 33, 2, 2, 1, 20}, DType::kBF16, true);
  const Case c{50, 50, 2, 2, 1, 64};
  const AttentionOptions options = options_of(c);
  const Tensor q = to_gpu(random_strided(cpu(), DType::kBF16, {c.s, c.b, 128}, 1)),
               k = to_gpu(random_strided(cpu(), DType::kBF16, {c.s, c.b, 64}, 2)),
               v = to_gpu(random(cpu(), DType::kBF16, {c.s, c.b, 64}, 3)),
               dout = to_gpu(random(cpu(), DType::kBF16, {c.s, c.b, 128}, 4));
  ASSERT_TRUE(ops::cuda::cudnn_attention_takes(q, k, options));
  ASSERT_FALSE(ops::cuda::cudnn_attention_reaches({&q, &k, &v}));
  const AttentionResult forward = ops::attention(gpu(), q, k, v, options);
  const AttentionResult exact = ops::attention(cpu(), wide(q), wide(k), wide(v), options);
  expect_close(forward.out, exact.out, 1e-2, "out");
  const Gradients g = backward(c, {q, k, v, dout}, forward, options, false);
  const Tensor dq = cpu().alloc(DType::kF64, q.shape(), "dq"), dk = cpu().alloc(DType::kF64, k.shape(), "dk"),
               dv = cpu().alloc(DType::kF64, v.shape(), "dv");
  ops::attention_backward(cpu(), wide(dout), wide(q), wide(k), wide(v), exact, options, dq, dk, dv);
  expect_close(g.dq, dq, 1e-2, "dq");
  expect_close(g.dk, dk, 1e-2, "dk");
  expect_close(g.dv, dv, 1e-2, "dv");
}

// Meta memory counts what the GPU takes.
TEST_F(CudnnAttention, MetaLanePlansTheSame) {
  const Case c{256, 256, 2, 4, 2, 64};
  const auto run = [&](Lane& lane) {
    const Tensor all = lane.alloc(DType::kBF16, {c.s, c.b, 512}, "qkv"),
                 dall = lane.alloc(DType::kBF16, {c.s, c.b, 512}, "dqkv"),
                 dout = lane.alloc(DType::kBF16, {c.s, c.b, 256}, "dout");
    if (!lane.meta()) {
      for (const Tensor& x : {all, dout}) ops::fill(lane, x, 0);
    }
    const auto part = [](const Tensor& x, int which) {
      return which == 0 ? x.slice_columns(0, 256) : x.slice_columns(128 + 128 * which, 128);
    };
    const AttentionResult forward =
        ops::attention(lane, part(all, 0), part(all, 1), part(all, 2), options_of(c));
    ops::attention_backward(lane, dout, part(all, 0), part(all, 1), part(all, 2), forward, options_of(c),
                            part(dall, 0), part(dall, 1), part(dall, 2));
    return lane.arena.high_water();
  };
  Bench meta(Arena::meta(DeviceKind::kCuda));
  EXPECT_EQ(run(meta.lane), run(gpu()));
}

// The choice, and the bounds of scratch: no GPU is asked.
TEST(CudnnAttentionChoice, ByTypesShapesAndOptions) {
  Bench meta(Arena::meta(DeviceKind::kCuda));
  const auto takes = [&](const Case& c, DType dtype,
                         const std::function<void(AttentionOptions&)>& change = {}) {
    const Tensor q = meta.lane.alloc(dtype, {c.s, c.b, c.heads * c.d}, "q"),
                 k = meta.lane.alloc(dtype, {c.keys, c.b, c.kv_heads * c.d}, "k");
    AttentionOptions options = options_of(c);
    if (change) change(options);
    return ops::cuda::cudnn_attention_takes(q, k, options);
  };
  const Case c{64, 64, 2, 4, 2, 128};
  EXPECT_TRUE(takes(c, DType::kBF16));
  EXPECT_TRUE(takes(c, DType::kF16));
  EXPECT_FALSE(takes(c, DType::kF32));
  EXPECT_FALSE(takes(c, DType::kF64));
  EXPECT_FALSE(takes(c, DType::kBF16, [](AttentionOptions& o) { o.dropout = 0.1; }));
  EXPECT_FALSE(takes(c, DType::kBF16, [](AttentionOptions& o) { o.query_offset = 1; }));
  EXPECT_TRUE(takes({64, 96, 2, 4, 2, 128, false}, DType::kBF16));
  EXPECT_FALSE(takes({64, 96, 2, 4, 2, 128, true}, DType::kBF16));
  EXPECT_TRUE(takes({64, 96, 2, 4, 2, 128, true, 32}, DType::kBF16));
  EXPECT_FALSE(takes({64, 96, 2, 4, 2, 128, true, 31}, DType::kBF16));
  EXPECT_FALSE(takes({96, 64, 2, 4, 2, 128, true, -32}, DType::kBF16));
  EXPECT_TRUE(takes({64, 64, 2, 4, 2, 128, true, 0, 16}, DType::kBF16));
  EXPECT_TRUE(takes({64, 96, 2, 4, 2, 128, true, 32, 16}, DType::kBF16));
  EXPECT_FALSE(takes({64, 96, 2, 4, 2, 128, true, 64, 16}, DType::kBF16));
  EXPECT_FALSE(takes(c, DType::kBF16, [](AttentionOptions& o) { o.soft_cap = 30; }));
  EXPECT_FALSE(takes(c, DType::kBF16, [&](AttentionOptions& o) {
    o.sinks = meta.lane.alloc(DType::kF32, {c.heads}, "sinks");
  }));
  EXPECT_FALSE(takes(c, DType::kBF16, [&](AttentionOptions& o) {
    o.first_keys = meta.lane.alloc(DType::kI32, {c.b, c.s}, "first keys");
  }));
  EXPECT_FALSE(takes({64, 64, 2, 4, 2, 136}, DType::kBF16));
  EXPECT_FALSE(takes({64, 64, 2, 4, 2, 60}, DType::kBF16));
  EXPECT_FALSE(takes({1, 1, 2, 4, 2, 64}, DType::kBF16));
  EXPECT_FALSE(takes({0, 0, 2, 4, 2, 64}, DType::kBF16));
}

// Sizes of the workspace that cuDNN 9.19 reports for these on an H100 or H200.
TEST(CudnnAttentionChoice, ScratchHoldsWhatCudnnAsksFor) {
  Bench meta(Arena::meta(DeviceKind::kCuda));
  const auto expect = [&](const Case& c, bool deterministic, std::int64_t needed) {
    const Tensor q = meta.lane.alloc(DType::kBF16, {c.s, c.b, c.heads * c.d}, "q"),
                 k = meta.lane.alloc(DType::kBF16, {c.keys, c.b, c.kv_heads * c.d}, "k");
    const std::int64_t bytes =
        ops::cuda::cudnn_attention_backward_scratch(q, k, options_of(c, deterministic));
    EXPECT_GE(bytes, needed) << text(c, DType::kBF16, false);
    EXPECT_LE(bytes, needed + needed / 10 + (64 << 10)) << text(c, DType::kBF16, false);
  };
  expect({17, 17, 1, 1, 1, 64}, false, 4676);
  expect({333, 333, 2, 4, 2, 80}, false, 1715872);
  expect({1024, 1024, 1, 2, 2, 128, false}, false, 1057024);
  expect({40, 200, 2, 4, 2, 8, false}, false, 62976);
  expect({333, 333, 1, 3, 1, 64}, true, 1144732);
  expect({256, 512, 2, 4, 2, 64, true, 256}, false, 1581312);
  expect({256, 512, 2, 4, 2, 64, true, 256}, true, 3154176);
  expect({333, 333, 2, 4, 2, 64, true, 0, 100}, true, 3052192);
  expect({200, 456, 1, 4, 2, 128, true, 256, 100}, false, 1346944);
}

}  // namespace
}  // namespace weft
