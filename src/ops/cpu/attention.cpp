// Forward attention: for each tile of query rows, keys in order, with the online softmax.
#include <cmath>

#include "ops/cpu/attention_tiles.hpp"
#include "ops/cpu/math.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

// At most this many query rows for a key/value head are done by dot products (decoding): memory sets the pace
// there, and a tile of 64 rows would be mostly padding.
constexpr Index kFewRows = 4;

template <class A>
struct ForwardTiles {
  static Index elements(Index head_dim, Index padded) {
    return kQueryTile * padded * 2 + head_dim * kQueryTile + 2 * kKeyTile * padded + kKeyTile * kQueryTile;
  }
  ForwardTiles(A* memory, Index head_dim, Index padded)
      : q(memory),
        out(q + kQueryTile * padded),
        qt(out + kQueryTile * padded),
        k(qt + head_dim * kQueryTile),
        v(k + kKeyTile * padded),
        scores(v + kKeyTile * padded) {}
  A *q, *out, *qt, *k, *v, *scores;
};

template <class A>
struct Softmax {
  A max[kQueryTile], sum[kQueryTile], rescale[kQueryTile];
  Softmax() {
    for (Index i = 0; i < kQueryTile; ++i) max[i] = -std::numeric_limits<A>::infinity(), sum[i] = 0;
  }

  // A score without a value, before all others.
  void add_sink(Index i, A sink) { max[i] = sink, sum[i] = 1; }

  // scores [keys][kQueryTile] := exp(score − maximum so far); rescale: what older sums are to be multiplied
  // with.
  void update(A* __restrict scores, Index keys) {
    A next[kQueryTile], base[kQueryTile], add[kQueryTile];
    for (Index i = 0; i < kQueryTile; ++i) next[i] = max[i];
    for (Index j = 0; j < keys; ++j) {
      const A* __restrict row = scores + j * kQueryTile;
      for (Index i = 0; i < kQueryTile; ++i) next[i] = row[i] > next[i] ? row[i] : next[i];
    }
    for (Index i = 0; i < kQueryTile; ++i) {
      // A row that has seen nothing yet: any finite base gives exp(−infinity − base) = 0.
      base[i] = next[i] == -std::numeric_limits<A>::infinity() ? A{0} : next[i];
      rescale[i] = exp_of(max[i] - base[i]);
      max[i] = next[i];
      add[i] = 0;
    }
    for (Index j = 0; j < keys; ++j) {
      A* __restrict row = scores + j * kQueryTile;
      for (Index i = 0; i < kQueryTile; ++i) {
        row[i] = exp_of(row[i] - base[i]);
        add[i] += row[i];
      }
    }
    for (Index i = 0; i < kQueryTile; ++i) sum[i] = sum[i] * rescale[i] + add[i];
  }
};

template <class T>
void forward_tile(const AttentionSizes& z, const AttentionOptions& options, const QueryTile& tile,
                  Index kv_head, const Tensor& k, const Tensor& v, const Tensor& q,
                  const AttentionResult& result, const ForwardTiles<accumulator_t<T>>& t) {
  using A = accumulator_t<T>;
  const Index d = z.head_dim, padded = z.padded_dim;
  for (Index i = 0; i < tile.rows; ++i) {
    load_rows(tile.row<T>(q, i, d), 0, 1, d, padded, t.q + i * padded);
    for (Index c = 0; c < d; ++c) t.q[i * padded + c] *= static_cast<A>(options.scale);
  }
  transpose_tile(t.q, tile.rows, d, padded, t.qt);
  Softmax<A> softmax;
  if (options.sinks.defined()) {
    for (Index i = 0; i < tile.rows; ++i) softmax.add_sink(i, options.sinks.data<A>()[tile.head[i]]);
  }
  const Index k_stride = z.batch * k.ld(), v_stride = z.batch * v.ld();
  const T* keys = k.data<T>() + tile.sample * k.ld() + kv_head * d;
  const T* values = v.data<T>() + tile.sample * v.ld() + kv_head * d;
  for (Index first = tile.begin; first < tile.keys; first += kKeyTile) {
    const Index count = std::min(kKeyTile, tile.keys - first);
    load_rows(keys + first * k_stride, k_stride, count, d, padded, t.k);
    load_rows(values + first * v_stride, v_stride, count, d, padded, t.v);
    tile_product<A>(count, tile.rows, d, t.k, padded, 1, t.qt, kQueryTile, t.scores, kQueryTile, false);
    if (options.soft_cap > 0) cap_scores(static_cast<A>(options.soft_cap), count, t.scores);
    mask_invisible(tile, first, count, -std::numeric_limits<A>::infinity(), t.scores);
    softmax.update(t.scores, count);
    if (options.dropout > 0) {
      for_dropout<A>(options, tile, first, count,
                     [&](Index j, Index i, A factor) { t.scores[j * kQueryTile + i] *= factor; });
    }
    if (first > tile.begin) {
      for (Index i = 0; i < tile.rows; ++i) {
        for (Index c = 0; c < padded; ++c) t.out[i * padded + c] *= softmax.rescale[i];
      }
    }
    tile_product<A>(tile.rows, d, count, t.scores, 1, kQueryTile, t.v, padded, t.out, padded,
                    first > tile.begin);
  }
  for (Index i = 0; i < tile.rows; ++i) {
    const A sum = softmax.sum[i];
    // A row that sees no key is 0. Scores that are NaN or all minus infinity must show: such a row is NaN.
    const bool blind = tile.blind(i);
    const A inverse = A{1} / sum;
    A* row = t.out + i * padded;
    for (Index c = 0; c < d; ++c) row[c] = blind ? A{0} : row[c] * inverse;
    convert(row, tile.row<T>(result.out, i, d), d);
    tile.statistic<A>(result.lse, i) = softmax.max[i] + std::log(sum);
  }
}

// Σ x[c] y[c], y converted on the way.
template <class A, class T>
A dot(const A* x, const T* y, Index n) {
  using V = typename Vector<A>::type;
  constexpr Index kLanes = Vector<A>::kLanes;
  V even{}, odd{};
  Index c = 0;
  for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
    even += load_vector<A>(x + c) * load_vector<A>(y + c);
    odd += load_vector<A>(x + c + kLanes) * load_vector<A>(y + c + kLanes);
  }
  even += odd;
  A sum = 0;
  for (Index l = 0; l < kLanes; ++l) sum += even[l];
  for (; c < n; ++c) sum += x[c] * to_acc(y[c]);
  return sum;
}

// out[c] += factor · x[c]
template <class A, class T>
void add_scaled(A factor, const T* x, A* out, Index n) {
  using V = typename Vector<A>::type;
  constexpr Index kLanes = Vector<A>::kLanes;
  Index c = 0;
  for (; c + kLanes <= n; c += kLanes) *reinterpret_cast<V*>(out + c) += factor * load_vector<A>(x + c);
  for (; c < n; ++c) out[c] += factor * to_acc(x[c]);
}

template <class T>
void forward_few(const AttentionSizes& z, const AttentionOptions& options, const QueryTile& tile,
                 Index kv_head, const Tensor& k, const Tensor& v, const Tensor& q,
                 const AttentionResult& result, const ForwardTiles<accumulator_t<T>>& t) {
  using A = accumulator_t<T>;
  constexpr A kLowest = -std::numeric_limits<A>::infinity();
  const Index d = z.head_dim, padded = z.padded_dim;
  A max[kFewRows], sum[kFewRows], scores[kFewRows][kKeyTile];
  for (Index i = 0; i < tile.rows; ++i) {
    load_rows(tile.row<T>(q, i, d), 0, 1, d, padded, t.q + i * padded);
    for (Index c = 0; c < d; ++c) t.q[i * padded + c] *= static_cast<A>(options.scale);
    std::fill_n(t.out + i * padded, padded, A{0});
    const bool sink = options.sinks.defined();
    max[i] = sink ? options.sinks.data<A>()[tile.head[i]] : kLowest;
    sum[i] = sink ? 1 : 0;
  }
  const Index k_stride = z.batch * k.ld(), v_stride = z.batch * v.ld();
  const T* keys = k.data<T>() + tile.sample * k.ld() + kv_head * d;
  const T* values = v.data<T>() + tile.sample * v.ld() + kv_head * d;
  const A cap = static_cast<A>(options.soft_cap);
  for (Index first = tile.begin; first < tile.keys; first += kKeyTile) {
    const Index count = std::min(kKeyTile, tile.keys - first);
    for (Index j = 0; j < count; ++j) {
      const T* key = keys + (first + j) * k_stride;
      for (Index i = 0; i < tile.rows; ++i) {
        const A score = tile.sees(i, first + j) ? dot<A>(t.q + i * padded, key, d) : kLowest;
        scores[i][j] = cap > 0 && score != kLowest ? cap * tanh_of(score / cap) : score;
      }
    }
    for (Index i = 0; i < tile.rows; ++i) {
      A next = max[i];
      for (Index j = 0; j < count; ++j) next = std::max(next, scores[i][j]);
      const A base = next == kLowest ? A{0} : next;
      const A rescale = exp_of(max[i] - base);
      max[i] = next;
      sum[i] *= rescale;
      for (Index j = 0; j < count; ++j) scores[i][j] = exp_of(scores[i][j] - base);
      for (Index j = 0; j < count; ++j) sum[i] += scores[i][j];
      for (Index c = 0; c < d; ++c) t.out[i * padded + c] *= rescale;
    }
    if (options.dropout > 0) {
      for_dropout<A>(options, tile, first, count,
                     [&](Index j, Index i, A factor) { scores[i][j] *= factor; });
    }
    for (Index j = 0; j < count; ++j) {
      const T* value = values + (first + j) * v_stride;
      for (Index i = 0; i < tile.rows; ++i) add_scaled(scores[i][j], value, t.out + i * padded, d);
    }
  }
  for (Index i = 0; i < tile.rows; ++i) {
    const A inverse = tile.blind(i) ? A{0} : A{1} / sum[i];
    for (Index c = 0; c < d; ++c) t.out[i * padded + c] *= inverse;
    convert(t.out + i * padded, tile.row<T>(result.out, i, d), d);
    tile.statistic<A>(result.lse, i) = max[i] + std::log(sum[i]);
  }
}

Index forward_pieces(const AttentionSizes& z) {
  return z.batch * z.kv_heads * z.tiles;
}

}  // namespace

std::int64_t attention_scratch(const Lane& lane, const Tensor& q, const Tensor& k,
                               const AttentionOptions& options) {
  const AttentionSizes z(q, k, options);
  const Index slots = std::min<Index>(lane.workers.threads(), forward_pieces(z));
  const Index elements = slots * ForwardTiles<float>::elements(z.head_dim, z.padded_dim);
  return elements * static_cast<Index>(bytes_of(accumulator_of(q.dtype())));
}

void attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
               const AttentionResult& result, const Tensor& scratch) {
  visit_floating(q.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const AttentionSizes z(q, k, options);
    const Index pieces = forward_pieces(z), slot_size = ForwardTiles<A>::elements(z.head_dim, z.padded_dim);
    Slots slots(static_cast<int>(std::min<Index>(lane.workers.threads(), pieces)));
    lane.workers.parallel_for(pieces, 1, [&](Index piece, Index) {
      const Slots::Lease slot(slots);
      const ForwardTiles<A> t(reinterpret_cast<A*>(scratch.raw()) + slot.index() * slot_size, z.head_dim,
                              z.padded_dim);
      // Late tiles first: they see the most keys, so the workers finish together.
      const Index heads = z.batch * z.kv_heads, at = piece % heads;
      const QueryTile tile(z, options, at / z.kv_heads, at % z.kv_heads, z.tiles - 1 - piece / heads);
      if (tile.rows <= kFewRows && z.tiles == 1) {
        forward_few<T>(z, options, tile, at % z.kv_heads, k, v, q, result, t);
      } else {
        forward_tile<T>(z, options, tile, at % z.kv_heads, k, v, q, result, t);
      }
    });
  });
}

}  // namespace weft::ops::cpu
