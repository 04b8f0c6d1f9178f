#include "train/ceilings.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/rng.hpp"
#include "ops/elementwise.hpp"
#include "ops/gemm.hpp"
#include "ops/normal.hpp"

namespace weft {
namespace {

double fastest(Lane& lane, const std::function<void()>& run) {
  double best = std::numeric_limits<double>::max(), sum = 0;
  // A busy machine shows its best only now and then.
  for (int i = 0; i < 5 || (i < 30 && sum < 300); ++i) {
    const double ms = milliseconds(lane, run);
    best = std::min(best, ms);
    sum += ms;
  }
  return best;
}

}  // namespace

void synchronize(Lane& lane) {
  const Tensor one = lane.alloc(DType::kF64, {1}, "step statistics");
  ops::fill(lane, one, 0);
  ops::to_host<double>(lane, one);
}

double milliseconds(Lane& lane, const std::function<void()>& run) {
  synchronize(lane);
  if (lane.device().kind == DeviceKind::kCuda) {
    lane.tools->trace(true);
    run();
    double sum = 0;
    for (const TracedOperation& op : lane.tools->traced()) sum += op.duration() / 1e3;
    lane.tools->trace(false);
    return sum;
  }
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

void fill_normal(Lane& lane, const Tensor& x, double scale) {
  constexpr std::int64_t kBlock = 65521;  // prime: no row begins as another one
  const std::int64_t n = x.elems(), block = std::min(n, kBlock);
  if (n == 0) return;
  const Tensor flat = x.view({n});
  const RandomKey key = RandomKey{1}.with("bench").with(static_cast<std::uint64_t>(lane.arena.allocations()));
  ops::fill_normal(lane, flat.slice(0, block), key, scale, {});
  for (std::int64_t have = block; have < n;) {
    const std::int64_t more = std::min(have, n - have);
    ops::copy(lane, flat.slice(0, more), flat.slice(have, more));
    have += more;
  }
}

CeilingSizes CeilingSizes::of(DeviceKind kind) {
  if (kind == DeviceKind::kCuda) return {std::size_t{1} << 29, 8192};
  return {std::size_t{1} << 26, 1024};
}

std::size_t CeilingSizes::bytes(DType dtype) const {
  const auto matrix = static_cast<std::size_t>(side * side) * bytes_of(dtype);
  return std::max(2 * copy_bytes, 3 * matrix) + (std::size_t{80} << 20);  // and a library's scratch
}

Ceilings measure_ceilings(Lane& lane, DType dtype, CeilingSizes sizes) {
  Ceilings result;
  const std::size_t room = lane.arena.capacity() - lane.arena.in_use();
  {
    const auto elems = static_cast<std::int64_t>(std::min(room / 4, sizes.copy_bytes) / bytes_of(dtype));
    const Tensor from = lane.alloc(dtype, {elems}, "bench"), to = lane.alloc(dtype, {elems}, "bench");
    fill_normal(lane, from);
    ops::copy(lane, from, to);
    const double ms = fastest(lane, [&] { ops::copy(lane, from, to); });
    result.copy_rate = 2 * static_cast<double>(from.bytes()) / ms * 1e3;
  }
  std::int64_t side = sizes.side;
  while (side > 256 && static_cast<std::size_t>(side * side) * 5 * bytes_of(dtype) > room) side /= 2;
  if (static_cast<std::size_t>(side * side) * 5 * bytes_of(dtype) > room) return result;
  const Tensor a = lane.alloc(dtype, {side, side}, "bench"), b = lane.alloc(dtype, {side, side}, "bench");
  fill_normal(lane, a);
  fill_normal(lane, b);
  const Tensor c = lane.alloc(dtype, {side, side}, "bench");
  const auto product = [&] { ops::gemm_nt_into(lane, a, b, {}, c); };
  product();  // chooses its algorithm
  result.product_rate = 2 * std::pow(static_cast<double>(side), 3) / fastest(lane, product) * 1e3;
  return result;
}

}  // namespace weft
