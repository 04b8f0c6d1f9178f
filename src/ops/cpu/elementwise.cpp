#include <cmath>
#include <limits>

#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

constexpr Index kSumPiece = 4096;

// Any dtype; integers are converted by value.
template <class Body>
void visit_any(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kI64:
      return body(std::int64_t{});
    case DType::kI32:
      return body(std::int32_t{});
    case DType::kI16:
      return body(std::int16_t{});
    case DType::kU16:
      return body(std::uint16_t{});
    case DType::kI8:
      return body(std::int8_t{});
    case DType::kU8:
      return body(std::uint8_t{});
    default:
      visit_floating(dtype, body);
  }
}

template <class T>
concept Integer = std::integral<T>;

template <class From, class To>
void convert_any(const From* __restrict in, To* __restrict out, Index n) {
  if constexpr (std::same_as<From, To>) {
    std::copy_n(in, n, out);
  } else if constexpr (!Integer<From> && !Integer<To>) {
    convert(in, out, n);
  } else if constexpr (Integer<From> && Integer<To>) {
    // An int8_t is a number here. NOLINTNEXTLINE(bugprone-signed-char-misuse)
    for (Index i = 0; i < n; ++i) out[i] = static_cast<To>(in[i]);
  } else if constexpr (Integer<From>) {
    for (Index i = 0; i < n; ++i) out[i] = from_acc<To>(static_cast<accumulator_t<To>>(in[i]));
  } else {
    for (Index i = 0; i < n; ++i) out[i] = static_cast<To>(to_acc(in[i]));
  }
}

// Calls body(span, n) on the elements [begin, end) of x in logical order.
template <class T, class Body>
void for_elements(const Tensor& x, Index begin, Index end, const Body& body) {
  const Index columns = x.columns();
  while (begin < end) {
    const Index n = x.contiguous() ? end - begin : std::min(end - begin, columns - begin % columns);
    body(x.data<T>() + (x.contiguous() ? begin : begin / columns * x.ld() + begin % columns), begin, n);
    begin += n;
  }
}

// Element i of a piece goes to lane i % 8 of the sum, so the order is fixed and the loop vectorises.
template <class T>
double sum_piece(const Tensor& x, Index begin, Index end, bool squares) {
  double lanes[8] = {};
  for_elements<T>(x, begin, end, [&](const T* __restrict p, Index at, Index n) {
    if ((at - begin) % 8 == 0) {
      Index i = 0;
      for (; i + 8 <= n; i += 8) {
        for (Index l = 0; l < 8; ++l) {
          const auto v = static_cast<double>(to_acc(p[i + l]));
          lanes[l] += squares ? v * v : v;
        }
      }
      p += i, at += i, n -= i;
    }
    for (Index i = 0; i < n; ++i) {
      const auto v = static_cast<double>(to_acc(p[i]));
      lanes[(at - begin + i) % 8] += squares ? v * v : v;
    }
  });
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

double sum_pieces(Lane& lane, const Tensor& x, bool squares, const Tensor& partial) {
  double total = 0;
  visit_floating(x.dtype(), [&]<class T>(T) {
    const Index n = x.elems();
    double* pieces = partial.data<double>();
    lane.workers.parallel_for(n, 4 * kSumPiece, [&](Index begin, Index end) {
      for (Index p = begin; p < end; p += kSumPiece) {
        pieces[p / kSumPiece] = sum_piece<T>(x, p, std::min(p + kSumPiece, end), squares);
      }
    });
    for (Index p = 0; p < ceil_div(n, kSumPiece); ++p) total += pieces[p];
  });
  return total;
}

template <class T>
bool finite(T x) {
  return std::isfinite(to_acc(x));
}

}  // namespace

void fill(Lane& lane, const Tensor& x, double value) {
  visit_any(x.dtype(), [&]<class T>(T) {
    T v;
    if constexpr (Integer<T>) {
      v = static_cast<T>(value);
    } else {
      v = from_acc<T>(static_cast<accumulator_t<T>>(value));
    }
    for_spans(lane, x.rows(), x.columns(), x.contiguous(),
              [&](Index r, Index j, Index n) { std::fill_n(x.data<T>() + r * x.ld() + j, n, v); });
  });
}

void copy(Lane& lane, const Tensor& from, const Tensor& to) {
  visit_any(from.dtype(), [&]<class From>(From) {
    visit_any(to.dtype(), [&]<class To>(To) {
      for_spans(lane, from.rows(), from.columns(), from.contiguous() && to.contiguous(),
                [&](Index r, Index j, Index n) {
                  convert_any(from.data<From>() + r * from.ld() + j, to.data<To>() + r * to.ld() + j, n);
                });
    });
  });
}

void upload(Lane& lane, const Tensor& from, const Tensor& to) {
  copy(lane, from, to);
}

void add_in_place(Lane& lane, const Tensor& x, const Tensor& y) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    visit_floating(y.dtype(), [&]<class U>(U) {
      using A = accumulator_t<T>;
      for_spans(lane, x.rows(), x.columns(), x.contiguous() && y.contiguous(),
                [&](Index r, Index j, Index n) {
                  T* out = x.data<T>() + r * x.ld() + j;
                  const U* in = y.data<U>() + r * y.ld() + j;
#pragma GCC ivdep
                  for (Index i = 0; i < n; ++i)
                    out[i] = from_acc<T>(to_acc(out[i]) + static_cast<A>(to_acc(in[i])));
                });
    });
  });
}

void scale_in_place(Lane& lane, const Tensor& x, double factor) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    const auto f = static_cast<accumulator_t<T>>(factor);
    for_spans(lane, x.rows(), x.columns(), x.contiguous(), [&](Index r, Index j, Index n) {
      T* p = x.data<T>() + r * x.ld() + j;
      for (Index i = 0; i < n; ++i) p[i] = from_acc<T>(to_acc(p[i]) * f);
    });
  });
}

void sum(Lane& lane, const Tensor& x, const Tensor& partial, const Tensor& out) {
  *out.data<double>() = sum_pieces(lane, x, false, partial);
}

std::int64_t sums_of_squares_partials(const Lane&, const FlatPieces& pieces) {
  Index most = 0;
  for (const FlatPiece& p : pieces.list()) most = std::max(most, ceil_div(p.elems, kSumPiece));
  return most;
}

void sums_of_squares(Lane& lane, const FlatPieces& pieces, const Tensor& x, const Tensor& partial,
                     const Tensor& out) {
  double* sums = out.data<double>();
  std::fill_n(sums, out.elems(), 0.0);
  for (const FlatPiece& p : pieces.list()) {
    sums[p.tag] += sum_pieces(lane, x.slice(p.offset, p.elems), true, partial);
  }
}

void find_nonfinite(Lane& lane, const Tensor& x, const Tensor&, std::int64_t& index) {
  constexpr Index kNone = std::numeric_limits<Index>::max();
  std::atomic<Index> first{kNone};
  visit_floating(x.dtype(), [&]<class T>(T) {
    lane.workers.parallel_for(x.elems(), kSpan, [&](Index begin, Index end) {
      if (begin > first.load(std::memory_order_relaxed)) return;
      for_elements<T>(x, begin, end, [&](const T* p, Index at, Index n) {
        int bad = 0;
        for (Index i = 0; i < n; ++i) bad |= finite(p[i]) ? 0 : 1;
        if (bad == 0) return;
        Index i = 0;
        while (finite(p[i])) ++i;
        Index seen = first.load();
        while (at + i < seen && !first.compare_exchange_weak(seen, at + i)) {
        }
      });
    });
  });
  index = first.load() == kNone ? -1 : first.load();
}

}  // namespace weft::ops::cpu
