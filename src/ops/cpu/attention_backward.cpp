// Backward attention. One piece is a (sample, key/value head): inside it tiles of query rows go in order, and
// for each the keys in order, so dk, dv and dq are each summed in one order. With p = exp(score − lse), m the
// dropout factors:
//   dv = (p m)ᵀ do;  dp = m (do vᵀ);  ds = p (dp − D), D = Σ do · out;  dq = scale ds k;  dk = scale dsᵀ q
// A capped score c tanh(s / c) passes on ds (1 − tanh²); a sink's gradient is −Σ exp(sink − lse) D.
#include <cmath>

#include "ops/cpu/attention_tiles.hpp"
#include "ops/cpu/math.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

template <class A>
struct BackwardTiles {
  static Index elements(const AttentionSizes& z) {
    return 4 * z.keys * z.padded_dim + 3 * kQueryTile * z.padded_dim + 2 * z.head_dim * kQueryTile +
           3 * kKeyTile * kQueryTile;
  }
  BackwardTiles(A* memory, const AttentionSizes& z)
      : k(memory),
        v(k + z.keys * z.padded_dim),
        dk(v + z.keys * z.padded_dim),
        dv(dk + z.keys * z.padded_dim),
        q(dv + z.keys * z.padded_dim),
        dout(q + kQueryTile * z.padded_dim),
        dq(dout + kQueryTile * z.padded_dim),
        qt(dq + kQueryTile * z.padded_dim),
        doutt(qt + z.head_dim * kQueryTile),
        p(doutt + z.head_dim * kQueryTile),
        dp(p + kKeyTile * kQueryTile),
        slope(dp + kKeyTile * kQueryTile) {}
  A *k, *v, *dk, *dv;                    // [keys][padded_dim]
  A *q, *dout, *dq;                      // [kQueryTile][padded_dim]; q times the scale
  A *qt, *doutt;                         // [head_dim][kQueryTile]
  A *p, *dp, *slope;                     // [kKeyTile][kQueryTile]; slope: of capped scores
  A lse[kQueryTile], along[kQueryTile];  // along: D
};

template <class T, class A>
void load_tile(const AttentionSizes& z, const AttentionOptions& options, const QueryTile& tile,
               const Tensor& q, const Tensor& dout, const AttentionResult& forward, BackwardTiles<A>& t) {
  const Index d = z.head_dim, padded = z.padded_dim;
  for (Index i = 0; i < tile.rows; ++i) {
    A* row = t.q + i * padded;
    load_rows(tile.row<T>(q, i, d), 0, 1, d, padded, row);
    for (Index c = 0; c < d; ++c) row[c] *= static_cast<A>(options.scale);
    A* grad = t.dout + i * padded;
    load_rows(tile.row<T>(dout, i, d), 0, 1, d, padded, grad);
    const T* __restrict out = tile.row<T>(forward.out, i, d);
    A along = 0;
    for (Index c = 0; c < d; ++c) along += grad[c] * to_acc(out[c]);
    t.along[i] = along;
    // A row that sees no key (and no sink) has lse −infinity; its scores are all masked.
    const A lse = tile.statistic<A>(forward.lse, i);
    t.lse[i] = std::isfinite(lse) ? lse : A{0};
  }
  for (Index i = tile.rows; i < kQueryTile; ++i) t.along[i] = t.lse[i] = 0;
  transpose_tile(t.q, tile.rows, d, padded, t.qt);
  transpose_tile(t.dout, tile.rows, d, padded, t.doutt);
}

template <class A>
void backward_tile(const AttentionSizes& z, const AttentionOptions& options, const QueryTile& tile,
                   BackwardTiles<A>& t) {
  const Index d = z.head_dim, padded = z.padded_dim;
  const A cap = static_cast<A>(options.soft_cap);
  for (Index first = tile.begin; first < tile.keys; first += kKeyTile) {
    const Index count = std::min(kKeyTile, tile.keys - first);
    const A* k = t.k + first * padded;
    tile_product<A>(count, tile.rows, d, k, padded, 1, t.qt, kQueryTile, t.p, kQueryTile, false);
    tile_product<A>(count, tile.rows, d, t.v + first * padded, padded, 1, t.doutt, kQueryTile, t.dp,
                    kQueryTile, false);
    if (cap > 0) {
      cap_scores(cap, count, t.p);
      for (Index i = 0; i < count * kQueryTile; ++i) t.slope[i] = 1 - (t.p[i] / cap) * (t.p[i] / cap);
    }
    for (Index j = 0; j < count; ++j) {
      A* __restrict row = t.p + j * kQueryTile;
      for (Index i = 0; i < kQueryTile; ++i) row[i] = exp_of(row[i] - t.lse[i]);
    }
    mask_invisible(tile, first, count, A{0}, t.p);
    const auto score_gradient = [&](A* __restrict to) {
      for (Index j = 0; j < count; ++j) {
        const A* __restrict p = t.p + j * kQueryTile;
        A* __restrict dp = to + j * kQueryTile;
        for (Index i = 0; i < kQueryTile; ++i) dp[i] = p[i] * (dp[i] - t.along[i]);
      }
    };
    if (options.dropout > 0) {
      // ds needs p without the factors, dv with them.
      for_dropout<A>(options, tile, first, count,
                     [&](Index j, Index i, A factor) { t.dp[j * kQueryTile + i] *= factor; });
      score_gradient(t.dp);
      for_dropout<A>(options, tile, first, count,
                     [&](Index j, Index i, A factor) { t.p[j * kQueryTile + i] *= factor; });
    } else {
      score_gradient(t.dp);
    }
    if (cap > 0) {
      for (Index i = 0; i < count * kQueryTile; ++i) t.dp[i] *= t.slope[i];
    }
    tile_product<A>(count, d, tile.rows, t.p, kQueryTile, 1, t.dout, padded, t.dv + first * padded, padded,
                    true);
    tile_product<A>(count, d, tile.rows, t.dp, kQueryTile, 1, t.q, padded, t.dk + first * padded, padded,
                    true);
    tile_product<A>(tile.rows, d, count, t.dp, 1, kQueryTile, k, padded, t.dq, padded, first > tile.begin);
  }
}

}  // namespace

std::int64_t attention_backward_scratch(const Lane& lane, const Tensor& q, const Tensor& k,
                                        const AttentionOptions& options) {
  const AttentionSizes z(q, k, options);
  const Index slots = std::min<Index>(lane.workers.threads(), z.batch * z.kv_heads);
  const Index sinks = options.sinks.defined() ? z.batch * z.q_heads : 0;
  return (slots * BackwardTiles<float>::elements(z) + sinks) *
         static_cast<Index>(bytes_of(accumulator_of(q.dtype())));
}

void attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionResult& forward, const AttentionOptions& options, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, const Tensor& dsinks, const Tensor& scratch) {
  visit_floating(q.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const AttentionSizes z(q, k, options);
    const Index d = z.head_dim, padded = z.padded_dim, pieces = z.batch * z.kv_heads;
    const Index slot_count = std::min<Index>(lane.workers.threads(), pieces);
    Slots slots(static_cast<int>(slot_count));
    // [batch][q_heads]: of each sample; a piece writes those of its heads.
    A* const sink_sums = reinterpret_cast<A*>(scratch.raw()) + slot_count * BackwardTiles<A>::elements(z);
    if (dsinks.defined()) std::fill_n(sink_sums, z.batch * z.q_heads, A{0});
    lane.workers.parallel_for(pieces, 1, [&](Index piece, Index) {
      const Slots::Lease slot(slots);
      BackwardTiles<A> t(reinterpret_cast<A*>(scratch.raw()) + slot.index() * BackwardTiles<A>::elements(z),
                         z);
      const Index sample = piece / z.kv_heads, kv_head = piece % z.kv_heads;
      const auto head_of = [&](const Tensor& x) { return x.data<T>() + sample * x.ld() + kv_head * d; };
      load_rows(head_of(k), z.batch * k.ld(), z.keys, d, padded, t.k);
      load_rows(head_of(v), z.batch * v.ld(), z.keys, d, padded, t.v);
      std::fill_n(t.dk, 2 * z.keys * padded, A{0});
      for (Index index = 0; index < z.tiles; ++index) {
        const QueryTile tile(z, options, sample, kv_head, index);
        load_tile<T>(z, options, tile, q, dout, forward, t);
        if (tile.begin >= tile.keys) std::fill_n(t.dq, tile.rows * padded, A{0});
        backward_tile(z, options, tile, t);
        for (Index i = 0; dsinks.defined() && i < tile.rows; ++i) {
          const A sink = options.sinks.data<A>()[tile.head[i]];
          sink_sums[sample * z.q_heads + tile.head[i]] -= exp_of(sink - t.lse[i]) * t.along[i];
        }
        for (Index i = 0; i < tile.rows; ++i) {
          A* row = t.dq + i * padded;
          for (Index c = 0; c < d; ++c) row[c] *= static_cast<A>(options.scale);
          convert(row, tile.row<T>(dq, i, d), d);
        }
      }
      for (Index j = 0; j < z.keys; ++j) {
        convert(t.dk + j * padded, head_of(dk) + j * z.batch * dk.ld(), d);
        convert(t.dv + j * padded, head_of(dv) + j * z.batch * dv.ld(), d);
      }
    });
    for (Index h = 0; dsinks.defined() && h < z.q_heads; ++h) {
      A sum = 0;
      for (Index b = 0; b < z.batch; ++b) sum += sink_sums[b * z.q_heads + h];
      dsinks.data<A>()[h] = sum;
    }
  });
}

}  // namespace weft::ops::cpu
