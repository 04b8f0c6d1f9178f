#include "ops/attention.hpp"

#include "ops/support.hpp"

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
  std::int64_t window = 0;
  double soft_cap = 0;
  bool sinks = false;
  std::int64_t document = 0;  // length of packed documents, one more in each sample; 0: none
};

struct Inputs {
  Tensor q, k, v, dout;
  AttentionOptions options;
};

AttentionOptions options_of(Lane& lane, const Case& c) {
  AttentionOptions o;
  o.head_dim = c.head_dim;
  o.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  o.causal = c.causal;
  o.query_offset = c.offset;
  o.dropout = c.dropout;
  o.dropout_key = RandomKey{5}.with("attention");
  o.first_head = 3;
  o.window = c.window;
  o.soft_cap = c.soft_cap;
  if (c.dropout > 0) {
    o.sample_ids = lane.alloc(DType::kI64, {c.batch}, "samples");
    for (std::int64_t b = 0; b < c.batch; ++b)
      set_element(o.sample_ids, b, static_cast<double>(1000 + 7 * b));
  }
  return o;
}

// q, k and v as they lie: q apart (strided), k and v in one packed tensor.
Inputs inputs_of(Lane& lane, DType dtype, const Case& c) {
  const std::int64_t width = c.kv_heads * c.head_dim;
  Inputs in;
  in.q = random_strided(lane, dtype, {c.queries, c.batch, c.q_heads * c.head_dim}, 1);
  const Tensor packed = random(lane, dtype, {c.keys, c.batch, 2 * width}, 2);
  in.k = packed.slice_columns(0, width);
  in.v = packed.slice_columns(width, width);
  in.dout = random(lane, dtype, {c.queries, c.batch, c.q_heads * c.head_dim}, 3);
  in.options = options_of(lane, c);
  if (c.sinks) in.options.sinks = random(lane, accumulator_of(dtype), {c.q_heads}, 4, 2);
  if (c.document > 0) {
    in.options.first_keys = zeros(lane, DType::kI32, {c.batch, c.queries});
    for (std::int64_t b = 0; b < c.batch; ++b) {
      for (std::int64_t i = 0; i < c.queries; ++i) {
        const std::int64_t length = c.document + b;
        set_element(in.options.first_keys, b * c.queries + i,
                    static_cast<double>((i + c.offset) / length * length));
      }
    }
  }
  return in;
}

struct Reference {
  Values out, lse, dq, dk, dv, dsinks;
};

double keep(const AttentionOptions& o, std::int64_t sample, std::int64_t head, std::int64_t query,
            std::int64_t key) {
  if (o.dropout == 0) return 1;
  const auto counter =
      static_cast<std::uint64_t>(key / 4) | static_cast<std::uint64_t>(query + o.query_offset) << 32;
  const auto id = static_cast<std::uint64_t>(element(o.sample_ids, sample)) << 20;
  const Philox bits = philox(o.dropout_key, counter, id | static_cast<std::uint64_t>(head + o.first_head));
  const double u = static_cast<double>(uniform(bits[static_cast<std::size_t>(key % 4)]));
  return u >= o.dropout ? 1 / (1 - o.dropout) : 0;
}

// Everything written out with the whole matrix of probabilities.
Reference reference(const Case& c, const Inputs& in) {
  const std::int64_t d = c.head_dim, group = c.q_heads / c.kv_heads;
  Reference r;
  r.out.assign(static_cast<std::size_t>(in.q.elems()), 0);
  r.dq = r.out;
  r.dk.assign(static_cast<std::size_t>(in.k.elems()), 0);
  r.dv = r.dk;
  r.lse.assign(static_cast<std::size_t>(c.batch * c.q_heads * c.queries), 0);
  r.dsinks.assign(static_cast<std::size_t>(c.sinks ? c.q_heads : 0), 0);
  const auto at = [&](std::int64_t row, std::int64_t b, std::int64_t heads, std::int64_t head,
                      std::int64_t x) { return ((row * c.batch + b) * heads + head) * d + x; };
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.q_heads; ++h) {
      for (std::int64_t i = 0; i < c.queries; ++i) {
        const std::int64_t seen = c.causal ? std::min(c.keys, i + c.offset + 1) : c.keys;
        std::int64_t from = c.window > 0 ? std::max<std::int64_t>(0, i + c.offset + 1 - c.window) : 0;
        if (c.document > 0) {
          from = std::max(from, static_cast<std::int64_t>(element(in.options.first_keys, b * c.queries + i)));
        }
        Values p(static_cast<std::size_t>(seen)), dp(p.size()), slope(p.size());
        const double sink = c.sinks ? std::exp(element(in.options.sinks, h)) : 0;
        double sum = sink, along = 0;
        for (std::int64_t j = from; j < seen; ++j) {
          double s = 0, g = 0;
          for (std::int64_t x = 0; x < d; ++x) {
            s += element(in.q, at(i, b, c.q_heads, h, x)) * element(in.k, at(j, b, c.kv_heads, h / group, x));
            g += element(in.dout, at(i, b, c.q_heads, h, x)) *
                 element(in.v, at(j, b, c.kv_heads, h / group, x));
          }
          const double tanh = c.soft_cap > 0 ? std::tanh(s * in.options.scale / c.soft_cap) : 0;
          slope[static_cast<std::size_t>(j)] = 1 - tanh * tanh;
          p[static_cast<std::size_t>(j)] =
              std::exp(c.soft_cap > 0 ? c.soft_cap * tanh : s * in.options.scale);
          sum += p[static_cast<std::size_t>(j)];
          dp[static_cast<std::size_t>(j)] = g * keep(in.options, b, h, i, j);
        }
        r.lse[static_cast<std::size_t>((b * c.q_heads + h) * c.queries + i)] = std::log(sum);
        for (std::size_t j = 0; j < p.size(); ++j) {
          p[j] /= sum;
          along += p[j] * dp[j];
        }
        if (c.sinks) r.dsinks[static_cast<std::size_t>(h)] -= sink / sum * along;
        for (std::int64_t j = from; j < seen; ++j) {
          const double pj = p[static_cast<std::size_t>(j)], kept = pj * keep(in.options, b, h, i, j);
          const double ds = pj * (dp[static_cast<std::size_t>(j)] - along) *
                            slope[static_cast<std::size_t>(j)] * in.options.scale;
          for (std::int64_t x = 0; x < d; ++x) {
            const auto qx = at(i, b, c.q_heads, h, x), kx = at(j, b, c.kv_heads, h / group, x);
            r.out[static_cast<std::size_t>(qx)] += kept * element(in.v, kx);
            r.dv[static_cast<std::size_t>(kx)] += kept * element(in.dout, qx);
            r.dq[static_cast<std::size_t>(qx)] += ds * element(in.k, kx);
            r.dk[static_cast<std::size_t>(kx)] += ds * element(in.q, qx);
          }
        }
      }
    }
  }
  return r;
}

struct Gradients {
  Tensor dq, dk, dv, dsinks;
};

// Into views of one packed tensor, as a packed qkv's gradient is.
Gradients backward(Lane& lane, const Inputs& in, const AttentionResult& forward) {
  const std::int64_t wq = in.q.columns(), wk = in.k.columns();
  Gradients g;
  if (in.q.dim(0) == in.k.dim(0)) {
    const Tensor packed = lane.alloc(in.q.dtype(), {in.q.dim(0), in.q.dim(1), wq + 2 * wk}, "dqkv");
    g = {packed.slice_columns(0, wq), packed.slice_columns(wq, wk), packed.slice_columns(wq + wk, wk)};
  } else {
    g = {lane.alloc(in.q.dtype(), in.q.shape(), "dq"), lane.alloc(in.k.dtype(), in.k.shape(), "dk"),
         lane.alloc(in.v.dtype(), in.v.shape(), "dv")};
  }
  if (in.options.sinks.defined())
    g.dsinks = lane.alloc(in.options.sinks.dtype(), in.options.sinks.shape(), "dsinks");
  ops::attention_backward(lane, in.dout, in.q, in.k, in.v, forward, in.options, g.dq, g.dk, g.dv, g.dsinks);
  return g;
}

const std::vector<Case> kCases = {{1, 1, 1, 1, 1, 4},
                                  {3, 3, 2, 4, 2, 8},
                                  {17, 17, 1, 3, 3, 24},
                                  {65, 65, 2, 2, 1, 16},
                                  {130, 130, 1, 4, 2, 20},
                                  {70, 70, 1, 2, 2, 64, false},
                                  {5, 133, 2, 4, 1, 16, false},
                                  {1, 150, 2, 4, 4, 40, true, 149},
                                  {1, 97, 1, 8, 2, 16, true, 96},
                                  {9, 80, 1, 2, 2, 8, true, 71},
                                  {40, 40, 2, 4, 2, 8, true, 0, 0.25},
                                  {1, 70, 2, 2, 2, 8, true, 69, 0.5},
                                  {33, 100, 1, 2, 1, 12, true, 67, 0.1},
                                  {130, 130, 1, 4, 2, 20, true, 0, 0, 20},
                                  {200, 200, 2, 2, 1, 8, true, 0, 0, 64},
                                  {70, 70, 1, 2, 2, 8, true, 0, 0, 1},
                                  {5, 200, 1, 2, 1, 8, true, 195, 0, 70},
                                  {1, 150, 2, 4, 4, 40, true, 149, 0, 10},
                                  {90, 90, 2, 4, 2, 16, true, 0, 0, 0, 1.5},
                                  {70, 70, 1, 2, 2, 64, false, 0, 0, 0, 0.7},
                                  {2, 90, 1, 4, 2, 16, true, 88, 0, 0, 1.5},
                                  {90, 90, 2, 4, 2, 16, true, 0, 0, 0, 0, true},
                                  {3, 90, 2, 4, 2, 16, true, 87, 0, 0, 0, true},
                                  {150, 150, 3, 4, 2, 8, true, 0, 0, 0, 0, false, 23},
                                  {150, 150, 2, 4, 2, 8, true, 0, 0, 0, 0, false, 1},
                                  {6, 150, 2, 4, 2, 8, true, 144, 0, 0, 0, false, 70},
                                  {150, 150, 2, 6, 2, 12, true, 0, 0.2, 17, 2.5, true, 40},
                                  {2, 150, 2, 6, 2, 12, true, 148, 0.2, 17, 2.5, true, 40}};

TEST(Attention, EqualsTheWholeMatrix) {
  for (const DType dtype : kFloating) {
    for (const Case& c : kCases) {
      Bench bench(2);
      const std::string what = fmt::format(
          "{} s{} sk{} b{} h{}/{} d{} offset {} dropout {} window {} cap {} sinks {} documents {}",
          name_of(dtype), c.queries, c.keys, c.batch, c.q_heads, c.kv_heads, c.head_dim, c.offset, c.dropout,
          c.window, c.soft_cap, c.sinks, c.document);
      const Inputs in = inputs_of(bench.lane, dtype, c);
      const Reference r = reference(c, in);
      const AttentionResult forward = ops::attention(bench.lane, in.q, in.k, in.v, in.options);
      const double tolerance = unit(dtype) * 2 + unit(accumulator_of(dtype)) * 40;
      expect_near(forward.out, r.out, tolerance, what + " out");
      expect_near(forward.lse, r.lse, unit(accumulator_of(dtype)) * 16, what + " lse");
      const Gradients g = backward(bench.lane, in, forward);
      // `out` was rounded to the type, and the sum with dout sees that.
      const double gradient_tolerance = tolerance * 3;
      expect_near(g.dq, r.dq, gradient_tolerance, what + " dq", 1);
      expect_near(g.dk, r.dk, gradient_tolerance, what + " dk", 1);
      expect_near(g.dv, r.dv, gradient_tolerance, what + " dv", 1);
      if (c.sinks) expect_near(g.dsinks, r.dsinks, gradient_tolerance * 4, what + " dsinks", 1);
    }
  }
}

TEST(Attention, BackwardIsTheDerivative) {
  for (const Case& c : {Case{70, 70, 1, 2, 1, 8}, Case{70, 70, 1, 2, 1, 8, true, 0, 0.3},
                        Case{70, 70, 1, 2, 1, 8, true, 0, 0, 9, 1.2, true, 30}}) {
    Bench bench;
    const Inputs in = inputs_of(bench.lane, DType::kF64, c);
    const Gradients g = backward(bench.lane, in, ops::attention(bench.lane, in.q, in.k, in.v, in.options));
    const auto loss = [&] {
      return dot(ops::attention(bench.lane, in.q, in.k, in.v, in.options).out, in.dout);
    };
    expect_gradient(in.q, values_of(g.dq), loss, "dq", 37);
    expect_gradient(in.k, values_of(g.dk), loss, "dk", 17);
    expect_gradient(in.v, values_of(g.dv), loss, "dv", 17);
    if (c.sinks) expect_gradient(in.options.sinks, values_of(g.dsinks), loss, "dsinks", 1);
  }
}

TEST(Attention, BitsDoNotDependOnWorkers) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : {Case{200, 200, 2, 4, 2, 16}, Case{40, 40, 3, 3, 3, 16, true, 0, 0.2},
                          Case{200, 200, 3, 4, 2, 16, true, 0, 0, 70, 2, true, 90}}) {
      Bench one(1);
      const Inputs in = inputs_of(one.lane, dtype, c);
      const AttentionResult forward = ops::attention(one.lane, in.q, in.k, in.v, in.options);
      const Gradients g = backward(one.lane, in, forward);
      for (const int threads : {2, 3}) {
        Bench many(threads);
        const AttentionResult again = ops::attention(many.lane, in.q, in.k, in.v, in.options);
        EXPECT_TRUE(same_bits(again.out, forward.out));
        EXPECT_TRUE(same_bits(again.lse, forward.lse));
        const Gradients other = backward(many.lane, in, again);
        EXPECT_TRUE(same_bits(other.dq, g.dq));
        EXPECT_TRUE(same_bits(other.dk, g.dk));
        EXPECT_TRUE(same_bits(other.dv, g.dv));
        if (c.sinks) {
          EXPECT_TRUE(same_bits(other.dsinks, g.dsinks));
        }
      }
    }
  }
}

// A head's result does not depend on the other heads and samples beside it: what tensor parallelism relies
// on.
TEST(Attention, HeadsAndSamplesAreIndependent) {
  Bench bench;
  Lane& lane = bench.lane;
  const Case c{75, 75, 3, 4, 2, 16, true, 0, 0.2};
  Inputs in = inputs_of(lane, DType::kF32, c);
  const AttentionResult whole = ops::attention(lane, in.q, in.k, in.v, in.options);
  AttentionOptions half = in.options;
  half.first_head += 2;
  const AttentionResult part = ops::attention(lane, in.q.slice_columns(32, 32), in.k.slice_columns(16, 16),
                                              in.v.slice_columns(16, 16), half);
  EXPECT_TRUE(same_bits(part.out, whole.out.slice_columns(32, 32)));
}

TEST(Attention, LargeScoresStayFinite) {
  Bench bench;
  const Case c{66, 66, 1, 1, 1, 16};
  Inputs in = inputs_of(bench.lane, DType::kF32, c);
  for (std::int64_t i = 0; i < in.q.elems(); ++i) set_element(in.q, i, 300 * element(in.q, i));
  const Reference r = [&] {  // scores of some hundreds: still within double's exp
    Inputs small = in;
    small.options.scale /= 8;
    in.options = small.options;
    return reference(c, small);
  }();
  const AttentionResult forward = ops::attention(bench.lane, in.q, in.k, in.v, in.options);
  expect_near(forward.out, r.out, 1e-4, "out");
  expect_near(forward.lse, r.lse, 1e-6, "lse");
}

TEST(Attention, RowsThatSeeNothingAreZero) {
  Bench bench;
  const Case c{8, 8, 1, 1, 1, 8, true, -3};
  const Inputs in = inputs_of(bench.lane, DType::kF32, c);
  const AttentionResult forward = ops::attention(bench.lane, in.q, in.k, in.v, in.options);
  const Gradients g = backward(bench.lane, in, forward);
  for (std::int64_t i = 0; i < 3 * 8; ++i) {
    EXPECT_EQ(element(forward.out, i), 0);
    EXPECT_EQ(element(g.dq, i), 0);
  }
  for (const Tensor& x : {g.dq, g.dk, g.dv, forward.out}) {
    for (const double v : values_of(x)) EXPECT_TRUE(std::isfinite(v));
  }
}

// A score that is no number spoils the rows that see its key, and no row becomes an innocent 0. 2 queries:
// the path of decoding.
TEST(Attention, NotANumberStaysSo) {
  Bench bench;
  for (const Case& c : {Case{70, 70, 1, 1, 1, 8}, Case{2, 2, 1, 1, 1, 8}}) {
    Inputs in = inputs_of(bench.lane, DType::kF32, c);
    const std::int64_t key = c.keys - 2;
    set_element(in.k, key * 8 + 3, std::nan(""));
    const AttentionResult forward = ops::attention(bench.lane, in.q, in.k, in.v, in.options);
    for (std::int64_t i = 0; i < forward.out.elems(); ++i)
      EXPECT_EQ(std::isnan(element(forward.out, i)), i / 8 >= key) << i;
  }
}

// 8192 keys: one matrix of scores would be 256 MiB; everything must fit into 12 MiB beside q, k, v and their
// gradients.
TEST(Attention, MemoryIsLinearInTheSequence) {
  const std::int64_t s = 8192;
  const auto run = [&](Lane& lane) {
    Inputs in;
    for (Tensor* x : {&in.q, &in.k, &in.v, &in.dout}) {
      *x = lane.alloc(DType::kF32, {s, 1, 16}, "x");
      if (!lane.meta()) std::memset(x->raw(), 0, x->bytes());
    }
    in.options = options_of(lane, {s, s, 1, 1, 1, 16});
    backward(lane, in, ops::attention(lane, in.q, in.k, in.v, in.options));
  };
  Bench meta(Arena::meta(), 2);
  run(meta.lane);
  const std::size_t inputs = 4 * static_cast<std::size_t>(s) * 16 * sizeof(float);
  EXPECT_LT(meta.arena->high_water() - inputs, std::size_t{12} << 20);
  // And the real one needs no more than was planned.
  Bench real(Arena::host(meta.arena->high_water()), 2);
  run(real.lane);
}

TEST(Attention, MetaLanePlansTheSame) {
  const Case c{70, 70, 2, 4, 2, 24};
  expect_same_plan([&](Lane& lane) {
    Inputs in;
    in.q = lane.alloc(DType::kBF16, {70, 2, 96}, "q");
    in.k = lane.alloc(DType::kBF16, {70, 2, 48}, "k");
    in.v = lane.alloc(DType::kBF16, {70, 2, 48}, "v");
    in.dout = lane.alloc(DType::kBF16, {70, 2, 96}, "dout");
    in.options = options_of(lane, c);
    backward(lane, in, ops::attention(lane, in.q, in.k, in.v, in.options));
  });
}

}  // namespace
}  // namespace weft
