#include <algorithm>

#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

constexpr Index kBlock = 512;  // elements summed while they are in L1

Index checked(std::int32_t row, Index rows) {
  WEFT_CHECK(row < rows, "row {} of {}", row, rows);
  return row;
}

// Calls body(pair, row) for the pairs that have a row.
template <class Body>
void for_pairs(const Tensor& rows, Index begin, Index end, Index limit, const Body& body) {
  const std::int32_t* row = rows.data<std::int32_t>();
  for (Index i = begin; i < end; ++i) {
    if (row[i] >= 0) body(i, checked(row[i], limit));
  }
}

// Whether each of the `count` rows belongs to a pair: no row belongs to two.
bool all_filled(const Tensor& rows, Index count) {
  Index filled = 0;
  for_pairs(rows, 0, rows.elems(), count, [&](Index, Index) { ++filled; });
  return filled == count;
}

}  // namespace

std::int64_t expert_order_scratch(const Lane&, const Tensor&, std::int64_t) {
  return 0;
}

void expert_order(Lane&, const Tensor& experts, std::int64_t padded_to, const ExpertOrder& order,
                  const Tensor&) {
  const Index n = order.offsets.elems() - 1, pairs = experts.elems();
  const std::int32_t* expert = experts.data<std::int32_t>();
  std::int32_t* rows = order.rows.data<std::int32_t>();
  std::int32_t* offsets = order.offsets.data<std::int32_t>();
  std::fill_n(offsets, n + 1, 0);
  for (Index i = 0; i < pairs; ++i) {
    WEFT_CHECK(expert[i] < n, "expert {} of {}", expert[i], n);
    if (expert[i] >= 0) ++offsets[expert[i] + 1];
  }
  for (Index e = 0; e < n; ++e) {
    WEFT_CHECK(padded_to == 0 || offsets[e + 1] <= padded_to, "{} tokens at expert {}, which has {} rows",
               offsets[e + 1], e, padded_to);
    offsets[e + 1] =
        padded_to == 0 ? offsets[e] + offsets[e + 1] : static_cast<std::int32_t>(padded_to * (e + 1));
  }
  // offsets[e] goes from the first row of e to the one after its last pair, and then back.
  for (Index i = 0; i < pairs; ++i) rows[i] = expert[i] < 0 ? -1 : offsets[expert[i]]++;
  for (Index e = n - 1; e >= 0; --e) {
    if (padded_to == 0) {
      offsets[e] = e == 0 ? 0 : offsets[e - 1];
    } else {
      offsets[e] = static_cast<std::int32_t>(padded_to * e);
    }
  }
}

void own_experts(Lane&, const Tensor& experts, std::int64_t first, std::int64_t count, const Tensor& own) {
  const std::int32_t* in = experts.data<std::int32_t>();
  std::int32_t* out = own.data<std::int32_t>();
  for (Index i = 0; i < experts.elems(); ++i) {
    const Index e = in[i] - first;
    out[i] = e >= 0 && e < count ? static_cast<std::int32_t>(e) : -1;
  }
}

std::int64_t spread_rows_scratch(const Lane&, const Tensor&) {
  return 0;
}

void spread_rows(Lane& lane, const Tensor& x, const Tensor& rows, const Tensor& out, const Tensor&) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    const Index h = x.dim(1), k = rows.dim(1), count = out.dim(0);
    if (!all_filled(rows, count)) {
      for_rows(lane, count, h, [&](Index begin, Index end) {
        for (Index r = begin; r < end; ++r) std::fill_n(out.data<T>() + r * out.ld(), h, T{});
      });
    }
    for_rows(lane, x.dim(0), h * k, [&](Index begin, Index end) {
      for_pairs(rows, begin * k, end * k, count, [&](Index pair, Index row) {
        std::copy_n(x.data<T>() + pair / k * x.ld(), h, out.data<T>() + row * out.ld());
      });
    });
  });
}

void collect_rows(Lane& lane, const Tensor& y, const Tensor& rows, const Tensor& x) {
  visit_floating(y.dtype(), [&]<class T>(T) {
    const Index h = y.dim(1), k = rows.dim(1), count = y.dim(0);
    for_rows(lane, x.dim(0), h * k, [&](Index begin, Index end) {
      accumulator_t<T> sums[kBlock];
      for (Index t = begin; t < end; ++t) {
        for (Index first = 0; first < h; first += kBlock) {
          const Index n = std::min(kBlock, h - first);
          std::fill_n(sums, n, accumulator_t<T>{0});
          for_pairs(rows, t * k, (t + 1) * k, count, [&](Index, Index row) {
            const T* __restrict in = y.data<T>() + row * y.ld() + first;
            for (Index i = 0; i < n; ++i) sums[i] += to_acc(in[i]);
          });
          convert(sums, x.data<T>() + t * x.ld() + first, n);
        }
      }
    });
  });
}

void spread_values(Lane&, const Tensor& values, const Tensor& rows, const Tensor& out) {
  visit_floating(values.dtype(), [&]<class T>(T) {
    const T* in = values.data<T>();
    T* to = out.data<T>();
    std::fill_n(to, out.elems(), T{});
    for_pairs(rows, 0, rows.elems(), out.elems(), [&](Index pair, Index row) { to[row] = in[pair]; });
  });
}

void collect_values(Lane&, const Tensor& y, const Tensor& rows, const Tensor& values) {
  visit_floating(y.dtype(), [&]<class T>(T) {
    const T* in = y.data<T>();
    T* to = values.data<T>();
    std::fill_n(to, values.elems(), T{});
    for_pairs(rows, 0, rows.elems(), y.elems(), [&](Index pair, Index row) { to[pair] = in[row]; });
  });
}

}  // namespace weft::ops::cpu
