#include "comm/reduce.hpp"

#include <algorithm>
#include <array>
#include <type_traits>

namespace weft {
namespace {

// Small enough that the sums stay in the first-level cache while every input passes by.
constexpr std::int64_t kPiece = 1024;

// What a sum of T is kept in. Integers are summed unsigned: wrapping is defined there.
template <class T>
struct Sum {
  using Type = accumulator_t<T>;
};
template <class T>
requires std::is_integral_v<T>
struct Sum<T> {
  using Type = std::make_unsigned_t<T>;
};
template <class T>
struct Max {
  using Type = std::conditional_t<std::is_integral_v<T>, T, accumulator_t<T>>;
};

template <class T, ReduceOp op>
using Accumulator = typename std::conditional_t<op == ReduceOp::kSum, Sum<T>, Max<T>>::Type;

// `n` elements at the same place of every view.
template <class T, ReduceOp op>
void reduce_piece(const std::vector<View>& inputs, const std::vector<View>& outputs, std::int64_t row,
                  std::int64_t column, std::int64_t n) {
  using A = Accumulator<T, op>;
  std::array<A, kPiece> sum;
  const auto at = [&](const View& v) { return reinterpret_cast<T*>(v.data) + row * v.ld + column; };
  const T* first = at(inputs[0]);
  for (std::int64_t i = 0; i < n; ++i) sum[i] = static_cast<A>(first[i]);
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    const T* x = at(inputs[r]);
    for (std::int64_t i = 0; i < n; ++i) {
      const A value = static_cast<A>(x[i]);
      if constexpr (op == ReduceOp::kSum) {
        sum[i] = static_cast<A>(sum[i] + value);
      } else {
        sum[i] = (value > sum[i] || value != value) ? value : sum[i];
      }
    }
  }
  for (const View& output : outputs) {
    T* y = at(output);
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(sum[i]);
  }
}

template <class T, ReduceOp op>
void reduce(std::vector<View> inputs, std::vector<View> outputs) {
  const auto contiguous = [](const View& v) { return v.contiguous(); };
  if (std::all_of(inputs.begin(), inputs.end(), contiguous) &&
      std::all_of(outputs.begin(), outputs.end(), contiguous)) {
    for (std::vector<View>* views : {&inputs, &outputs}) {
      for (View& v : *views) {
        v.ld = v.columns = v.elems();
        v.rows = 1;
      }
    }
  }
  for (std::int64_t row = 0; row < inputs[0].rows; ++row) {
    for (std::int64_t column = 0; column < inputs[0].columns; column += kPiece) {
      reduce_piece<T, op>(inputs, outputs, row, column, std::min(kPiece, inputs[0].columns - column));
    }
  }
}

template <class T>
void reduce(ReduceOp op, const std::vector<View>& inputs, const std::vector<View>& outputs) {
  if (op == ReduceOp::kSum) return reduce<T, ReduceOp::kSum>(inputs, outputs);
  return reduce<T, ReduceOp::kMax>(inputs, outputs);
}

}  // namespace

void reduce_in_order(DType dtype, ReduceOp op, const std::vector<View>& inputs,
                     const std::vector<View>& outputs) {
  if (inputs.empty() || inputs[0].elems() == 0) return;
  switch (dtype) {
    case DType::kF64:
      return reduce<double>(op, inputs, outputs);
    case DType::kF32:
      return reduce<float>(op, inputs, outputs);
    case DType::kBF16:
      return reduce<bf16>(op, inputs, outputs);
    case DType::kF16:
      return reduce<f16>(op, inputs, outputs);
    case DType::kI64:
      return reduce<std::int64_t>(op, inputs, outputs);
    case DType::kI32:
      return reduce<std::int32_t>(op, inputs, outputs);
    case DType::kI16:
      return reduce<std::int16_t>(op, inputs, outputs);
    case DType::kU16:
      return reduce<std::uint16_t>(op, inputs, outputs);
    case DType::kI8:
      return reduce<std::int8_t>(op, inputs, outputs);
    case DType::kU8:
      return reduce<std::uint8_t>(op, inputs, outputs);
  }
}

}  // namespace weft
