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
  std::int64_t first_key = 0;
  std::int64_t window = 0;
  double soft_cap = 0;
  bool sinks = false;
  std::int64_t document = 0;  // length of packed documents, one more in each sample; 0: none
};

class CudaPlainAttention : public OnGpu {
 protected:
  struct Inputs {
    Tensor q, k, v, dout;
  };
  struct Gradients {
    Tensor dq, dk, dv, dsinks;
  };

  // On the CPU; what is on the GPU is narrower: on_gpu().
  AttentionOptions options_of(const Case& c) {
    AttentionOptions o;
    o.head_dim = c.head_dim;
    o.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    o.causal = c.causal;
    o.query_offset = c.offset;
    o.dropout = c.dropout;
    o.dropout_key = RandomKey{5}.with("attention");
    o.first_head = 3;
    o.first_key = c.first_key;
    o.window = c.window;
    o.soft_cap = c.soft_cap;
    if (c.sinks) {  // of f32, in f64
      o.sinks = zeros(cpu(), DType::kF64, {c.q_heads});
      ops::copy(cpu(), random(cpu(), DType::kF32, {c.q_heads}, 4, 2), o.sinks);
    }
    if (c.document > 0) {  // in rows that lie apart
      o.first_keys = zeros(cpu(), DType::kI32, {c.batch, c.queries + 9}).slice_columns(4, c.queries);
      for (std::int64_t b = 0; b < c.batch; ++b) {
        for (std::int64_t i = 0; i < c.queries; ++i) {
          const std::int64_t length = c.document + b, position = c.first_key + c.offset + i;
          const std::int64_t start = position / length * length;
          set_element(o.first_keys, b * c.queries + i, static_cast<double>(start));
        }
      }
    }
    if (c.dropout > 0) {
      o.sample_ids = cpu().alloc(DType::kI64, {c.batch}, "samples");
      for (std::int64_t b = 0; b < c.batch; ++b) {
        set_element(o.sample_ids, b, static_cast<double>(1000 + 7 * b));
      }
    }
    return o;
  }
  AttentionOptions on_gpu(AttentionOptions o, DType dtype) {
    o.sample_ids = to_gpu(o.sample_ids);
    o.first_keys = to_gpu(o.first_keys);
    o.sinks = to_gpu(o.sinks, accumulator_of(dtype));
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
    ops::cuda::plain_attention(gpu(), in.q, in.k, in.v, on_gpu(o, in.q.dtype()), r);
    return r;
  }
  // Into views of one tensor where the shapes allow it.
  Gradients backward(const Inputs& in, const AttentionResult& r, const AttentionOptions& o) {
    const std::int64_t wq = in.q.columns(), wk = in.k.columns(), b = in.q.dim(1);
    const auto nans_of = [&](DType dtype, const Shape& shape) {
      Tensor x = gpu().alloc(dtype, shape, "gradient");
      ops::fill(gpu(), x, std::nan(""));
      return x;
    };
    const auto nans = [&](const Shape& shape) { return nans_of(in.q.dtype(), shape); };
    Gradients g;
    if (in.q.dim(0) == in.k.dim(0)) {
      const Tensor all = nans({in.q.dim(0), b, wq + 2 * wk});
      g = {all.slice_columns(0, wq), all.slice_columns(wq, wk), all.slice_columns(wq + wk, wk), {}};
    } else {
      g = {nans(in.q.shape()), nans(in.k.shape()), nans(in.v.shape()), {}};
    }
    if (o.sinks.defined()) g.dsinks = nans_of(accumulator_of(in.q.dtype()), o.sinks.shape());
    const Tensor scratch =
        gpu().alloc(DType::kU8, {ops::cuda::plain_attention_backward_scratch(in.q, in.k, o)}, "scratch");
    ops::cuda::plain_attention_backward(gpu(), in.dout, in.q, in.k, in.v, r, on_gpu(o, in.q.dtype()), g.dq,
                                        g.dk, g.dv, g.dsinks, scratch);
    return g;
  }

  void check(DType dtype, const Case& c, bool packed) {
    SCOPED_TRACE(fmt::format(
        "{} s{} sk{} b{} h{}/{} d{} causal {} offset {} dropout {} first key {} window {} cap {} sinks {} "
        "documents {} packed {}",
        name_of(dtype), c.queries, c.keys, c.batch, c.q_heads, c.kv_heads, c.head_dim, c.causal, c.offset,
        c.dropout, c.first_key, c.window, c.soft_cap, c.sinks, c.document, packed));
    const double fine = rounding(accumulator_of(dtype));
    const AttentionOptions o = options_of(c);
    const Inputs in = inputs_of(dtype, c, packed);
    const Inputs in64{wide(in.q), wide(in.k), wide(in.v), wide(in.dout)};
    const AttentionResult r64 = ops::attention(cpu(), in64.q, in64.k, in64.v, o);
    const AttentionResult r = forward(in, o);
    expect_close(r.out, r64.out, std::max(rounding(dtype), 2 * fine), "out");
    expect_close(r.lse, r64.lse, 2 * fine, "lse");
    Gradients g64{zeros(cpu(), DType::kF64, in.q.shape()), zeros(cpu(), DType::kF64, in.k.shape()),
                  zeros(cpu(), DType::kF64, in.v.shape()),
                  c.sinks ? zeros(cpu(), DType::kF64, o.sinks.shape()) : Tensor()};
    ops::attention_backward(cpu(), in64.dout, in64.q, in64.k, in64.v, r64, o, g64.dq, g64.dk, g64.dv,
                            g64.dsinks);
    const Gradients g = backward(in, r, o);
    // `out` was rounded to the type, and the sum with dout sees that.
    const double tolerance = std::max(2 * rounding(dtype), 5 * fine);
    if (c.keys > 1 && (c.window != 1 || c.sinks)) {  // else nothing but rounding
      expect_close(g.dq, g64.dq, tolerance, "dq");
      expect_close(g.dk, g64.dk, tolerance, "dk");
    }
    expect_close(g.dv, g64.dv, tolerance, "dv");
    // A sum in which much cancels.
    if (c.sinks) expect_close(g.dsinks, g64.dsinks, 4 * tolerance, "dsinks");
    const AttentionResult again = forward(in, o);
    EXPECT_TRUE(same_bits(to_cpu(again.out), to_cpu(r.out)));
    EXPECT_TRUE(same_bits(to_cpu(again.lse), to_cpu(r.lse)));
    const Gradients h = backward(in, again, o);
    EXPECT_TRUE(same_bits(to_cpu(h.dq), to_cpu(g.dq)));
    EXPECT_TRUE(same_bits(to_cpu(h.dk), to_cpu(g.dk)));
    EXPECT_TRUE(same_bits(to_cpu(h.dv), to_cpu(g.dv)));
    if (c.sinks) {
      EXPECT_TRUE(same_bits(to_cpu(h.dsinks), to_cpu(g.dsinks)));
    }
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

// Tiles are 64, 32 or 16 rows high: windows and documents begin inside them and at their borders.
TEST_F(CudaPlainAttention, Windows) {
  const std::vector<Case> cases = {{130, 130, 1, 4, 2, 20, true, 0, 0, 0, 1},
                                   {130, 130, 1, 4, 2, 20, true, 0, 0, 0, 20},
                                   {200, 200, 2, 2, 1, 8, true, 0, 0, 0, 64},
                                   {200, 200, 1, 2, 1, 8, true, 0, 0, 0, 65},
                                   {150, 150, 1, 3, 3, 128, true, 0, 0, 0, 100},
                                   {70, 70, 1, 2, 2, 8, true, 0, 0, 0, 500},
                                   {5, 200, 1, 2, 1, 8, true, 195, 0, 0, 70},
                                   {1, 150, 2, 4, 4, 40, true, 149, 0, 0, 10},
                                   {100, 300, 1, 2, 1, 32, true, 200, 0, 0, 90},
                                   {70, 90, 1, 2, 1, 200, true, 20, 0, 0, 30},
                                   {90, 120, 2, 4, 2, 16, true, 30, 0.2, 61, 40},
                                   // A part of the keys: the last queries are past them, the first before.
                                   {80, 70, 1, 2, 1, 16, true, 40, 0, 128, 30},
                                   {80, 64, 1, 2, 1, 16, true, -20, 0, 64, 30}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Case& c : cases) check(dtype, c, false);
  }
  check(DType::kF16, cases[1], true);
}

// Keys that are a part of the sequence: dropout goes by positions in the whole.
TEST_F(CudaPlainAttention, PartsOfASequence) {
  const std::vector<Case> cases = {{100, 300, 1, 2, 1, 32, true, 130},
                                   {90, 120, 2, 4, 2, 16, true, 30, 0.2, 61},
                                   {90, 70, 2, 2, 1, 16, true, -25, 0.2, 130},
                                   {60, 75, 2, 2, 2, 24, false, 75, 0.3, 7}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Case& c : cases) check(dtype, c, false);
  }
}

TEST_F(CudaPlainAttention, PackedDocuments) {
  const std::vector<Case> cases = {{150, 150, 3, 4, 2, 8, true, 0, 0, 0, 0, 0, false, 23},
                                   {150, 150, 2, 4, 2, 64, true, 0, 0, 0, 0, 0, false, 70},
                                   {200, 200, 1, 2, 1, 136, true, 0, 0, 0, 0, 0, false, 64},
                                   {100, 150, 2, 4, 2, 8, true, 50, 0, 0, 0, 0, false, 65},
                                   {70, 140, 2, 2, 1, 12, true, 70, 0.3, 33, 0, 0, false, 50},
                                   {70, 70, 2, 2, 1, 12, true, 70, 0, 65, 0, 0, false, 90},
                                   {60, 130, 1, 2, 1, 8, false, 0, 0, 0, 0, 0, false, 37}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Case& c : cases) check(dtype, c, false);
  }
  check(DType::kF16, cases[0], true);
}

TEST_F(CudaPlainAttention, SoftCapsAndSinks) {
  const std::vector<Case> cases = {
      {90, 90, 2, 4, 2, 16, true, 0, 0, 0, 0, 1.5},      {70, 70, 1, 2, 2, 64, false, 0, 0, 0, 0, 0.7},
      {2, 90, 1, 4, 2, 130, true, 88, 0, 0, 0, 1.5},     {90, 90, 2, 4, 2, 16, true, 0, 0, 0, 0, 0, true},
      {3, 90, 2, 4, 2, 16, true, 87, 0, 0, 0, 0, true},  {300, 40, 2, 2, 1, 80, false, 0, 0.1, 0, 0, 0, true},
      {80, 80, 1, 2, 1, 8, true, -30, 0, 40, 0, 0, true}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Case& c : cases) check(dtype, c, false);
  }
  check(DType::kF16, cases[3], true);
}

TEST_F(CudaPlainAttention, AllAtOnce) {
  const std::vector<Case> cases = {{150, 150, 2, 6, 2, 12, true, 0, 0.2, 5, 17, 2.5, true, 40},
                                   {70, 130, 1, 2, 1, 132, true, 60, 0, 0, 20, 2, true, 45},
                                   {140, 140, 2, 2, 1, 128, true, 0, 0.1, 0, 33, 3, true, 50}};
  for (const DType dtype : kFloating) {
    for (const Case& c : cases) check(dtype, c, c.queries == c.keys);
  }
}

// By the operation itself, as a model calls it.
TEST_F(CudaPlainAttention, TheOperationTakesThemAll) {
  const Case c{100, 100, 2, 4, 2, 24, true, 0, 0.2, 0, 30, 2, true, 40};
  const Inputs in = inputs_of(DType::kF32, c, true);
  const AttentionOptions o = on_gpu(options_of(c), DType::kF32);
  const AttentionResult r = ops::attention(gpu(), in.q, in.k, in.v, o);
  const AttentionResult same = forward(in, options_of(c));
  EXPECT_TRUE(same_bits(to_cpu(r.out), to_cpu(same.out)));
  EXPECT_TRUE(same_bits(to_cpu(r.lse), to_cpu(same.lse)));
  const Gradients g{gpu_like(in.dout), gpu_like(in.k), gpu_like(in.v), gpu_like(o.sinks)};
  ops::attention_backward(gpu(), in.dout, in.q, in.k, in.v, r, o, g.dq, g.dk, g.dv, g.dsinks);
  const Gradients h = backward(in, same, options_of(c));
  EXPECT_TRUE(same_bits(to_cpu(g.dq), to_cpu(h.dq)));
  EXPECT_TRUE(same_bits(to_cpu(g.dk), to_cpu(h.dk)));
  EXPECT_TRUE(same_bits(to_cpu(g.dv), to_cpu(h.dv)));
  EXPECT_TRUE(same_bits(to_cpu(g.dsinks), to_cpu(h.dsinks)));
}

// What stands in tiles that a tile has no business with is not even multiplied with 0: NaNs there do not
// show. Tiles of 64 rows.
TEST_F(CudaPlainAttention, TilesThatNobodySeesAreSkipped) {
  for (const bool documents : {false, true}) {
    SCOPED_TRACE(documents ? "documents" : "a window");
    const Case c{256, 256, 1, 2, 1, 16, true, 0, 0, 0, documents ? 0 : 30, 0, false, documents ? 30 : 0};
    const AttentionOptions o = options_of(c);
    const auto finite_rows = [&](const Tensor& x, std::int64_t first, std::int64_t last) {
      const Tensor got = to_cpu(x);
      bool finite = true;
      for (std::int64_t i = first * got.columns(); i < last * got.columns(); ++i) {
        finite = finite && std::isfinite(element(got, i));
      }
      return finite;
    };
    {  // Keys and values of the first tile: queries from 128 on are too far behind it.
      const Inputs in = inputs_of(DType::kF32, c, false);
      ops::fill(gpu(), in.k.slice(0, 64), std::nan(""));
      ops::fill(gpu(), in.v.slice(0, 64), std::nan(""));
      const AttentionResult r = forward(in, o);
      EXPECT_FALSE(finite_rows(r.out, 0, 64));
      EXPECT_TRUE(finite_rows(r.out, 128, 256));
      const Gradients g = backward(in, r, o);
      EXPECT_TRUE(finite_rows(g.dq, 128, 256));
      EXPECT_TRUE(finite_rows(g.dk, 128, 256));
      EXPECT_TRUE(finite_rows(g.dv, 128, 256));
    }
    {  // Queries of the last tile: keys before 128 are too far before it.
      const Inputs in = inputs_of(DType::kF32, c, false);
      const AttentionResult r = forward(in, o);
      ops::fill(gpu(), in.dout.slice(192, 64), std::nan(""));
      const Gradients g = backward(in, r, o);
      EXPECT_FALSE(finite_rows(g.dv, 192, 256));
      EXPECT_TRUE(finite_rows(g.dk, 0, 128));
      EXPECT_TRUE(finite_rows(g.dv, 0, 128));
    }
  }
}

// Every third query's document begins behind it.
TEST_F(CudaPlainAttention, QueriesBeforeTheirDocumentSeeNothing) {
  for (const bool sinks : {false, true}) {
    const Case c{100, 100, 1, 1, 1, 8, true, 0, 0, 0, 0, 0, sinks, 1000};
    const AttentionOptions o = options_of(c);
    for (std::int64_t i = 0; i < c.queries; i += 3) set_element(o.first_keys, i, static_cast<double>(i + 1));
    const Inputs in = inputs_of(DType::kF32, c, false);
    const AttentionResult r = forward(in, o);
    const Gradients g = backward(in, r, o);
    const Tensor out = to_cpu(r.out), dq = to_cpu(g.dq), lse = to_cpu(r.lse);
    const double blind = sinks ? element(o.sinks, 0) : -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < c.queries; i += 3) {
      for (std::int64_t e = i * 8; e < i * 8 + 8; ++e) {
        ASSERT_EQ(element(out, e), 0);
        ASSERT_EQ(element(dq, e), 0);
      }
      ASSERT_EQ(element(lse, i), blind);
    }
    for (const Tensor& x : {g.dq, g.dk, g.dv, r.out}) {
      for (const double v : values_of(to_cpu(x))) ASSERT_TRUE(std::isfinite(v));
    }
    const AttentionResult r64 = ops::attention(cpu(), wide(in.q), wide(in.k), wide(in.v), o);
    expect_close(r.out, r64.out, 2e-6, "out");
    expect_close(r.lse, r64.lse, 2e-6, "lse");
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
