#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

// Gradients are cut by columns: each piece walks all tokens in order, so sums have one order for any worker
// count.
constexpr Index kColumnPiece = 128;

template <class A>
void scale_rows(A* table, Index rows, Index ld, Index j, Index n, float beta) {
  if (beta == 1) return;
  for (Index r = 0; r < rows; ++r) {
    A* row = table + r * ld + j;
    for (Index i = 0; i < n; ++i) row[i] = beta == 0 ? A{0} : static_cast<A>(beta) * row[i];
  }
}

template <class A, class T>
void add_row(A* __restrict to, const T* __restrict from, Index n) {
  for (Index i = 0; i < n; ++i) to[i] += to_acc(from[i]);
}

}  // namespace

void embedding(Lane& lane, const Tensor& ids, const Tensor& table, std::int64_t first_row, const Tensor& y) {
  visit_floating(table.dtype(), [&]<class T>(T) {
    const Index h = table.columns(), batch = y.dim(1), length = y.dim(0);
    const std::int32_t* id = ids.data<std::int32_t>();
    for_rows(lane, y.rows(), h, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const Index row = id[r % batch * length + r / batch] - first_row;
        T* out = y.data<T>() + r * y.ld();
        if (row < 0 || row >= table.dim(0)) {
          std::fill_n(out, h, T{});
        } else {
          std::copy_n(table.data<T>() + row * table.ld(), h, out);
        }
      }
    });
  });
}

std::int64_t embedding_backward_scratch(const Lane&, const Tensor&, const Tensor&) {
  return 0;
}

void embedding_backward(Lane& lane, const Tensor& dy, const Tensor& ids, const Tensor& dtable,
                        std::int64_t first_row, float beta, const Tensor&) {
  visit_floating(dy.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index batch = dy.dim(1), length = dy.dim(0), rows = dtable.dim(0);
    const std::int32_t* id = ids.data<std::int32_t>();
    A* table = dtable.data<A>();
    lane.workers.parallel_for(dtable.columns(), kColumnPiece, [&](Index j, Index end) {
      scale_rows(table, rows, dtable.ld(), j, end - j, beta);
      for (Index r = 0; r < dy.rows(); ++r) {
        const Index row = id[r % batch * length + r / batch] - first_row;
        if (row < 0 || row >= rows) continue;
        add_row(table + row * dtable.ld() + j, dy.data<T>() + r * dy.ld() + j, end - j);
      }
    });
  });
}

void add_positions(Lane& lane, const Tensor& x, const Tensor& table, std::int64_t first_position) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    const Index h = x.columns(), batch = x.dim(1);
    for_rows(lane, x.rows(), h, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        T* __restrict out = x.data<T>() + r * x.ld();
        const T* __restrict row = table.data<T>() + (first_position + r / batch) * table.ld();
        for (Index j = 0; j < h; ++j) out[j] = from_acc<T>(to_acc(out[j]) + to_acc(row[j]));
      }
    });
  });
}

void add_positions_backward(Lane& lane, const Tensor& dy, const Tensor& dtable, std::int64_t first_position,
                            float beta) {
  visit_floating(dy.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const Index batch = dy.dim(1);
    A* table = dtable.data<A>();
    lane.workers.parallel_for(dtable.columns(), kColumnPiece, [&](Index j, Index end) {
      scale_rows(table, dtable.dim(0), dtable.ld(), j, end - j, beta);
      for (Index r = 0; r < dy.rows(); ++r) {
        add_row(table + (first_position + r / batch) * dtable.ld() + j, dy.data<T>() + r * dy.ld() + j,
                end - j);
      }
    });
  });
}

}  // namespace weft::ops::cpu
