// The least that an operation must do, from the arguments of its twin: each operand read or written once, and
// the floating-point operations of matrix products. Scratch counts nowhere. Used only while a lane is traced.
#pragma once

#include <algorithm>

#include "core/trace.hpp"
#include "ops/twins.hpp"

namespace weft::ops {

namespace costs {

inline double bytes(const Tensor& x) {
  return x.defined() ? static_cast<double>(x.bytes()) : 0;
}
inline double bytes(const NormResult& r) {
  return bytes(r.y) + bytes(r.mean) + bytes(r.rstd);
}
inline double bytes(const NormGradients& g) {
  return bytes(g.weight) + bytes(g.bias);
}
inline double bytes(const CrossEntropyLocal& l) {
  return bytes(l.max) + bytes(l.sums);
}
inline double bytes(const CrossEntropyResult& r) {
  return bytes(r.losses) + bytes(r.lse);
}
inline double bytes(const ActivationAgain& a) {
  return bytes(a.dx) + bytes(a.y);
}
inline double bytes(const Routing& r) {
  return bytes(r.probs) + bytes(r.experts);
}
inline double bytes(const ExpertOrder& o) {
  return bytes(o.rows) + bytes(o.offsets);
}
inline double bytes(const ScaledActivationGradient& g) {
  return bytes(g.dx) + bytes(g.dscale) + bytes(g.y);
}
inline double bytes(const AttentionResult& r) {
  return bytes(r.out) + bytes(r.lse);
}
inline double elems(const FlatPieces& pieces) {
  double n = 0;
  for (const FlatPiece& piece : pieces.list()) n += static_cast<double>(piece.elems);
  return n;
}
template <class T>
double bytes(const T&) {
  return 0;
}

}  // namespace costs

template <class... Arguments>
OperationCost cost_of(const char* twin, const Arguments&... arguments) {
  return {twin, (0.0 + ... + costs::bytes(arguments))};
}

inline OperationCost cost_of(const char* twin, const Gemm& g, const Tensor&) {
  static constexpr const char* kForms[] = {"nt", "nn", "tn"};
  const auto m = static_cast<double>(g.m()), n = static_cast<double>(g.n()), k = static_cast<double>(g.k());
  return {fmt::format("{} {} {}x{}x{}{}", twin, kForms[static_cast<int>(g.form)], g.m(), g.n(), g.k(),
                      g.beta != 0 ? " add" : ""),
          costs::bytes(g.a) + costs::bytes(g.b) + costs::bytes(g.bias) +
              costs::bytes(g.c) * (g.beta != 0 ? 2 : 1),
          2 * m * n * k};
}

// All rows count as some expert's: the device alone knows how many are.
inline OperationCost cost_of(const char* twin, const GroupedGemm& g, const Tensor&) {
  static constexpr const char* kForms[] = {"nt", "nn", "tn"};
  const bool add = g.beta != 0;
  return {fmt::format("{} {} {} of {}x{}, {} rows{}", twin, kForms[static_cast<int>(g.form)], g.experts(),
                      g.out(), g.in(), g.rows(), add ? " add" : ""),
          costs::bytes(g.a) + costs::bytes(g.b) + costs::bytes(g.c) * (add ? 2 : 1),
          2 * static_cast<double>(g.rows()) * static_cast<double>(g.out()) * static_cast<double>(g.in())};
}

// How much of the queries × keys of attention is seen, as an area: half of a square under a causal mask.
// Where documents begin is known to the device alone, so that all keys before count.
inline double pairs_seen(double queries, double keys, const AttentionOptions& options) {
  if (!options.causal) return queries * keys;
  // Under a diagonal that passes `above` keys at the first query.
  const auto below = [&](double above) {
    const auto integral = [&](double x) {
      return x <= 0 ? 0 : x <= keys ? x * x / 2 : keys * (x - keys / 2);
    };
    return integral(above + queries) - integral(above);
  };
  const auto offset = static_cast<double>(options.query_offset);
  return below(offset) - (options.window > 0 ? below(offset - static_cast<double>(options.window)) : 0);
}
// One product of attention; there are two forward and five backward.
inline double products_of(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  return 2 * pairs_seen(static_cast<double>(q.dim(0)), static_cast<double>(k.dim(0)), options) *
         static_cast<double>(q.dim(1)) * static_cast<double>(q.columns());
}
inline OperationCost cost_of(const char* twin, const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionOptions& options, const AttentionResult& result, const Tensor&) {
  return {twin, costs::bytes(q) + costs::bytes(k) + costs::bytes(v) + costs::bytes(result),
          2 * products_of(q, k, options)};
}
inline OperationCost cost_of(const char* twin, const Tensor& dout, const Tensor& q, const Tensor& k,
                             const Tensor& v, const AttentionResult& result, const AttentionOptions& options,
                             const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor&,
                             const Tensor&) {
  return {twin,
          costs::bytes(dout) + costs::bytes(q) + costs::bytes(k) + costs::bytes(v) + costs::bytes(result) +
              costs::bytes(dq) + costs::bytes(dk) + costs::bytes(dv),
          5 * products_of(q, k, options)};
}

inline OperationCost cost_of(const char* twin, Activation, const Tensor& dy, const Tensor& x,
                             const ActivationAgain& again, const Tensor&, float, const Tensor&) {
  return {twin, costs::bytes(dy) + costs::bytes(x) + costs::bytes(again)};
}
inline OperationCost cost_of(const char* twin, const Tensor& logits, const Tensor& counted,
                             const RouterOptions&, const Tensor& sums, const Tensor&) {
  return {twin, costs::bytes(logits) + costs::bytes(counted) + costs::bytes(sums)};
}
inline OperationCost cost_of(const char* twin, const Tensor& experts, std::int64_t, const ExpertOrder& order,
                             const Tensor&) {
  return {twin, costs::bytes(experts) + costs::bytes(order)};
}
inline OperationCost cost_of(const char* twin, const Routing& routing, const Tensor& places, std::int64_t,
                             std::int64_t, bool, const Tensor&) {
  return {twin, costs::bytes(routing) + costs::bytes(places)};
}
inline OperationCost cost_of(const char* twin, const Tensor& x, const Tensor& rows, const Tensor& out,
                             const Tensor&) {
  return {twin, costs::bytes(x) + costs::bytes(rows) + costs::bytes(out)};
}
// In place: read and written.
inline OperationCost cost_of(const char* twin, const Tensor& x, const RopeTable& table,
                             const Tensor& positions, int, bool) {
  return {twin,
          2 * costs::bytes(x) + costs::bytes(table.cos) + costs::bytes(table.sin) + costs::bytes(positions)};
}
inline OperationCost cost_of(const char* twin, const Tensor& logits, const Tensor& labels,
                             const CrossEntropyOptions&, double, const CrossEntropyResult& result,
                             const Tensor&) {
  return {twin, 2 * costs::bytes(logits) + costs::bytes(labels) + costs::bytes(result)};
}
// copy_to_heads and sum_of_heads: some channels of each head, and as many once.
inline OperationCost cost_of(const char* twin, const Tensor& x, const Tensor& y, std::int64_t head_dim,
                             std::int64_t) {
  const double columns = static_cast<double>(std::max(x.columns(), y.columns()));
  return {twin, std::min(costs::bytes(x), costs::bytes(y)) * (columns / static_cast<double>(head_dim) + 1)};
}
inline OperationCost cost_of(const char* twin, const Tensor& y, std::int64_t head_dim, std::int64_t first,
                             const Tensor& x) {
  return cost_of(twin, x, y, head_dim, first);
}
// dy is read; what it adds to is counted by the rows that it has.
inline OperationCost cost_of(const char* twin, const Tensor& dy, const Tensor& ids, const Tensor& table,
                             std::int64_t, float beta, const Tensor&) {
  return {twin, costs::bytes(dy) + costs::bytes(ids) + costs::bytes(table) * (beta != 0 ? 0 : 1)};
}
inline OperationCost cost_of(const char* twin, const Tensor& ids, const Tensor&, std::int64_t,
                             const Tensor& y) {
  return {twin, costs::bytes(ids) + 2 * costs::bytes(y)};
}
// Gradient read, master and moments read and written: 30 bytes of a bf16 parameter.
inline OperationCost cost_of(const char* twin, const AdamWStep&, const FlatPieces& pieces,
                             const AdamWTensors& t) {
  const double wide = static_cast<double>(bytes_of(t.master.dtype()));
  const double own = t.weight.raw() == t.master.raw() ? 0 : static_cast<double>(bytes_of(t.weight.dtype()));
  return {twin, costs::elems(pieces) * (7 * wide + own)};
}
inline OperationCost cost_of(const char* twin, const FlatPieces& pieces, const Tensor& x, const Tensor&,
                             const Tensor&) {
  return {twin, costs::elems(pieces) * static_cast<double>(bytes_of(x.dtype()))};
}

}  // namespace weft::ops
