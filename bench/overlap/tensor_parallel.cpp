// Tensor-parallel linears in chunks (--tp-comm-overlap) beside plain ones, on two ranks; the width inside is
// found at which the products take 1.5 times as long as the communication. T_none: collectives that move
// nothing. What cannot be hidden is one chunk's communication, the first or the last: 1 of n.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "nn/linear.hpp"
#include "nn/overlapped_linear.hpp"
#include "ops/elementwise.hpp"
#include "overlap.hpp"
#include "silent_communicator.hpp"

namespace weft::overlap {
namespace {

constexpr int kRanks = 2;
constexpr double kRatio = 1.5;

enum class Pass { kColumnForward, kColumnBackward, kRowForward, kRowBackward };
const char* name_of(Pass pass) {
  constexpr const char* kNames[] = {"column forward", "column backward", "row forward", "row backward"};
  return kNames[static_cast<int>(pass)];
}

struct OverlapSetup {
  Pass pass = Pass::kColumnForward;
  bool sequence_parallel = true;
  std::int64_t s = 4096, b = 1, h = 1024;  // global, outside
  std::int64_t width = 128;                // of this rank, inside
  int chunks = 4;
  int threads = 1;
  int repeats = 3;  // of the pass in one sample
};

// Seconds of one pass.
double seconds_of(const OverlapSetup& setup, Form form) {
  double seconds = 0;
  run_local_ranks({.ranks = kRanks, .link = link()}, [&](Communicator& world) {
    using Clock = std::chrono::steady_clock;
    const auto arena = Arena::host(std::size_t{1} << 30);
    Workers workers(setup.threads);
    Lane lane{*arena, workers, {}};
    SilentCommunicator silent(world.rank(), kRanks);
    Communicator& tp = form == Form::kNone ? static_cast<Communicator&>(silent) : world;
    const nn::ReplicatedBorder replicated(tp);
    const nn::SequenceParallelBorder cut(tp);
    const nn::ChunkedReplicatedBorder chunked_replicated(replicated, setup.chunks);
    const nn::ChunkedSequenceParallelBorder chunked_cut(cut, setup.chunks);
    const bool sp = setup.sequence_parallel, overlapped = form == Form::kOn;
    const nn::TensorParallelBorder& border =
        sp ? static_cast<const nn::TensorParallelBorder&>(cut) : replicated;
    const nn::ChunkedBorder& chunked =
        sp ? static_cast<const nn::ChunkedBorder&>(chunked_cut) : chunked_replicated;

    const bool row = setup.pass == Pass::kRowForward || setup.pass == Pass::kRowBackward;
    const Shape weight = row ? Shape{setup.h, setup.width} : Shape{setup.width, setup.h};
    const auto tensor = [&](const Shape& shape) {
      const Tensor x = lane.alloc(DType::kF32, shape, "measured");
      ops::fill(lane, x, 0.5);
      return x;
    };
    Param w("w", weight, {{"w", weight, -1, 0, weight[0], 0, {}}}, {.decay = true});
    w.bind(tensor(weight), tensor(weight), nullptr);
    std::unique_ptr<nn::Linear> linear;
    if (row && overlapped) {
      linear = std::make_unique<nn::OverlappedRowParallelLinear>(chunked, w);
    } else if (row) {
      linear = std::make_unique<nn::RowParallelLinear>(border, w);
    } else if (overlapped) {
      linear = std::make_unique<nn::OverlappedColumnParallelLinear>(chunked, w, nullptr);
    } else {
      linear = std::make_unique<nn::ColumnParallelLinear>(border, w, nullptr);
    }
    const Tensor outside = tensor({sp ? setup.s / kRanks : setup.s, setup.b, setup.h});
    const Tensor inside = tensor({setup.s, setup.b, setup.width});
    const bool backward = setup.pass == Pass::kColumnBackward || setup.pass == Pass::kRowBackward;
    double spent = 0;
    for (int i = -1; i < setup.repeats; ++i) {  // the first touches the memory
      Microbatch mb;
      w.begin_step(1);
      world.barrier(lane);
      auto start = Clock::now();
      linear->forward(lane, row ? inside : outside, mb);
      if (backward) {
        world.barrier(lane);
        start = Clock::now();
        nn::input_gradient(lane, *linear, row ? outside : inside, mb);
      }
      const std::chrono::duration<double> time = Clock::now() - start;
      if (i >= 0) spent += time.count();
    }
    if (world.rank() == 0) seconds = spent / setup.repeats;
  });
  return seconds;
}

// The width at which the products take kRatio times as long as the communication, on this machine.
std::int64_t width_for_ratio(OverlapSetup setup) {
  setup.width = 256;
  const Times times = take_turns(3, [&](Form form) { return seconds_of(setup, form); });
  const double width = 256 * kRatio * std::max(times.off - times.none, 1e-6) / times.none;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(width) / 16 * 16, 16, 4096);
}

// Bytes that a rank sends in a pass.
double bytes_of_pass(const OverlapSetup& setup) {
  const auto whole = static_cast<double>(setup.s * setup.b * setup.h) * 4;
  return setup.sequence_parallel ? whole * (kRanks - 1) / kRanks : whole * 2 * (kRanks - 1) / kRanks;
}

// Products and messages in turn, one of them a chunk ahead of the other.
double bound(const OverlapSetup& setup, double products) {
  const LinkModel model = link();
  const double latency = std::chrono::duration<double>(model.latency).count();
  const double bytes = bytes_of_pass(setup) / model.bytes_per_second, n = setup.chunks;
  const double message = latency + bytes / n;
  const double on = message + (n - 1) * std::max(message, products / n) + products / n;
  return 1 - (on - products) / (latency + bytes);
}

}  // namespace

void measure_tensor_parallel(const Settings& settings) {
  for (const bool sequence_parallel : {true, false}) {
    for (const Pass pass :
         {Pass::kColumnForward, Pass::kColumnBackward, Pass::kRowForward, Pass::kRowBackward}) {
      // Without sequence parallel these two communicate nothing.
      if (!sequence_parallel && (pass == Pass::kColumnForward || pass == Pass::kRowBackward)) continue;
      OverlapSetup setup;
      setup.pass = pass;
      setup.sequence_parallel = sequence_parallel;
      setup.threads = settings.threads;
      if (settings.quick) setup.s = 512, setup.h = 256, setup.repeats = 1;
      setup.width = width_for_ratio(setup);
      for (const int chunks : {4, 32}) {  // the engine's, and what a large message allows
        if (settings.quick && chunks > 4) continue;
        setup.chunks = chunks;
        const Times times = take_turns(settings.rounds, [&](Form form) { return seconds_of(setup, form); });
        print({.what = fmt::format("linear, {}{}, {} chunks", name_of(pass),
                                   sequence_parallel ? "" : ", replicated", chunks),
               .ranks = kRanks,
               .times = times,
               .compute = times.none,
               .communication = times.off - times.none,
               .bound = bound(setup, times.none)});
      }
    }
  }
}

}  // namespace weft::overlap
