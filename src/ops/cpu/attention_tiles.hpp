// What the forward and backward attention kernels share: how rows of queries are cut into tiles, how tiles
// are brought into packed form, and the causal and dropout masks. Tiles of scores are kept transposed, [keys,
// queries]: maxima and sums over keys are then vertical, and the keys need no transposition.
#pragma once

#include "ops/attention.hpp"
#include "ops/cpu/math.hpp"
#include "ops/cpu/random_mask.hpp"
#include "ops/cpu/support.hpp"
#include "ops/cpu/tile_product.hpp"
#include "ops/cpu/transpose.hpp"

namespace weft::ops::cpu {

inline constexpr Index kQueryTile = 64;
inline constexpr Index kKeyTile = 64;

struct AttentionSizes {
  AttentionSizes(const Tensor& q, const Tensor& k, const AttentionOptions& options)
      : queries(q.dim(0)),
        keys(k.dim(0)),
        batch(q.dim(1)),
        head_dim(options.head_dim),
        q_heads(q.columns() / head_dim),
        kv_heads(k.columns() / head_dim),
        group(q_heads / kv_heads),
        padded_dim(round_up(head_dim, kPaddedColumns<float>)),
        tiles(ceil_div(group * queries, kQueryTile)) {}
  Index queries, keys, batch, head_dim, q_heads, kv_heads;
  Index group;       // query heads for each key/value head
  Index padded_dim;  // rows of tiles reach to a multiple of kPaddedColumns
  Index tiles;       // of query rows, for each (sample, key/value head)
};

// The query rows of one key/value head are numbered (head in group, query), and cut into tiles of kQueryTile.
struct QueryTile {
  QueryTile(const AttentionSizes& z, const AttentionOptions& options, Index sample_index, Index kv_head,
            Index tile)
      : sample(sample_index),
        first(tile * kQueryTile),
        rows(std::min(kQueryTile, z.group * z.queries - first)),
        keys(0) {
    for (Index i = 0; i < rows; ++i) {
      const Index g = (first + i) / z.queries;
      query[i] = (first + i) % z.queries;
      head[i] = kv_head * z.group + g;
      const Index past = query[i] + options.query_offset + 1;
      visible[i] = options.causal ? std::clamp<Index>(past, 0, z.keys) : z.keys;
      Index from = options.window > 0 ? past - options.window : 0;
      if (options.first_keys.defined()) {
        const Index first_key =
            options.first_keys.data<std::int32_t>()[sample * options.first_keys.ld() + query[i]];
        from = std::max<Index>(from, first_key - options.first_key);
      }
      hidden[i] = std::clamp<Index>(from, 0, visible[i]);
      keys = std::max(keys, visible[i]);
    }
    least_visible = *std::min_element(visible.begin(), visible.begin() + rows);
    most_hidden = *std::max_element(hidden.begin(), hidden.begin() + rows);
    begin = *std::min_element(hidden.begin(), hidden.begin() + rows) / kKeyTile * kKeyTile;
  }
  bool sees(Index i, Index key) const { return key >= hidden[i] && key < visible[i]; }
  bool blind(Index i) const { return hidden[i] >= visible[i]; }
  // Where row i of a [queries, batch, q_heads · head_dim] tensor lies.
  template <class T>
  T* row(const Tensor& x, Index i, Index head_dim) const {
    return x.data<T>() + (query[i] * x.dim(1) + sample) * x.ld() + head[i] * head_dim;
  }
  template <class A>
  A& statistic(const Tensor& x, Index i) const {  // of [batch, q_heads, queries]
    return x.data<A>()[(sample * x.dim(1) + head[i]) * x.dim(2) + query[i]];
  }

  Index sample, first, rows;
  Index keys;           // some row sees this many
  Index least_visible;  // no row sees less than this many; all see the keys from most_hidden to there
  Index most_hidden;
  Index begin;  // of the first tile of keys that some row sees
  // A row sees the keys [hidden, visible).
  std::array<Index, kQueryTile> query{}, head{}, visible{}, hidden{};
};

// Rows [0, rows) of a tile as they are: out [rows][padded_dim], padding 0, times `factor`.
template <class T, class A>
void load_rows(const T* in, Index stride, Index rows, Index head_dim, Index padded_dim, A* out) {
  for (Index i = 0; i < rows; ++i) {
    A* to = out + i * padded_dim;
    convert(in + i * stride, to, head_dim);
    std::fill(to + head_dim, to + padded_dim, A{0});
  }
}

// out [head_dim][kQueryTile] = in [rows][padded_dim] transposed; columns past `rows` are 0.
template <class A>
void transpose_tile(const A* in, Index rows, Index head_dim, Index padded_dim, A* out) {
  constexpr Index kLanes = Vector<A>::kLanes;
  for (Index i = 0; i < kQueryTile; i += kLanes) {
    const Index lines = std::clamp<Index>(rows - i, 0, kLanes);
    transpose_lines<A>(in + i * padded_dim, padded_dim, lines, head_dim, out + i, kQueryTile);
  }
}

// scores [keys][kQueryTile]: `value` where a row does not see a key.
template <class A>
void mask_invisible(const QueryTile& tile, Index first_key, Index keys, A value, A* scores) {
  if (first_key + keys <= tile.least_visible && first_key >= tile.most_hidden) return;
  for (Index j = 0; j < keys; ++j) {
    for (Index i = 0; i < tile.rows; ++i) {
      if (!tile.sees(i, first_key + j)) scores[j * kQueryTile + i] = value;
    }
  }
}

// scores [keys][kQueryTile] := cap · tanh(scores / cap)
template <class A>
void cap_scores(A cap, Index keys, A* __restrict scores) {
  const A inverse = A{1} / cap;
  for (Index i = 0; i < keys * kQueryTile; ++i) scores[i] = cap * tanh_of(scores[i] * inverse);
}

// Dropout factors of a tile: body(j, i, factor) for every key j and row i.
template <class A, class Body>
void for_dropout(const AttentionOptions& options, const QueryTile& tile, Index first_key, Index keys,
                 const Body& body) {
  const Keep keep(options.dropout);
  const auto sample = static_cast<std::uint64_t>(options.sample_ids.data<std::int64_t>()[tile.sample]);
  A factors[kKeyTile];
  for (Index i = 0; i < tile.rows; ++i) {
    const auto query = static_cast<std::uint32_t>(options.first_key + options.query_offset + tile.query[i]);
    const auto head = static_cast<std::uint64_t>(options.first_head + tile.head[i]);
    keep_factors(options.dropout_key, keep, options.first_key + first_key, query, sample << 20 | head, keys,
                 factors);
    for (Index j = 0; j < keys; ++j) body(j, i, factors[j]);
  }
}

}  // namespace weft::ops::cpu
