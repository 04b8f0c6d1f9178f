// How much of tensor-parallel communication the overlapped linears hide: two thread ranks of one thread each,
// a pretended link of 100 us and 1 GB/s, products that take about 1.5 times as long as the communication.
//   hidden = 1 - (T_on - T_without) / (T_off - T_without)
// T_on overlapped, T_off plain, T_without with collectives that move nothing; medians of runs in turn.
//
// It needs three idle cores: the pretended link's copies are made by a third thread, which otherwise takes
// its time from the ranks. The link does not queue: two operations that are open at once do not slow each
// other.
//
//   overlap_bench [chunks...]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "comm/local/launcher.hpp"
#include "nn/linear.hpp"
#include "nn/overlapped_linear.hpp"
#include "ops/elementwise.hpp"

namespace weft {
namespace {

// A rank of `size` whose collectives are over when they start, and move nothing.
class SilentCommunicator final : public Communicator {
 public:
  SilentCommunicator(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  std::uint64_t bytes_sent() const override { return 0; }
  void barrier(Lane&) override {}
  Async<Tensor> all_reduce(Lane&, const Tensor& x, ReduceOp) override { return Async<Tensor>(x); }
  Async<Tensor> all_gather_into(Lane&, const Tensor&, const Tensor& full) override {
    return Async<Tensor>(full);
  }
  Async<Tensor> reduce_scatter_into(Lane&, const Tensor&, const Tensor& shard) override {
    return Async<Tensor>(shard);
  }
  Async<Tensor> all_to_all_into(Lane&, const Tensor&, const std::vector<std::int64_t>&, const Tensor& receive,
                                const std::vector<std::int64_t>&) override {
    return Async<Tensor>(receive);
  }
  Async<Tensor> broadcast(Lane&, const Tensor& x, int) override { return Async<Tensor>(x); }
  Async<std::vector<Tensor>> send_receive(Lane&, const std::vector<Message>&,
                                          const std::vector<Message>&) override {
    return Async<std::vector<Tensor>>(std::vector<Tensor>());
  }
  std::unique_ptr<Communicator> split(int, int, const std::string&) override { return nullptr; }

 private:
  int rank_, size_;
  std::string name_ = "silent";
};

enum class Pass { kColumnForward, kColumnBackward, kRowForward, kRowBackward };
const char* name_of(Pass pass) {
  constexpr const char* kNames[] = {"column forward", "column backward", "row forward", "row backward"};
  return kNames[static_cast<int>(pass)];
}

struct OverlapSetup {
  Pass pass = Pass::kColumnForward;
  bool sequence_parallel = true;
  std::int64_t s = 2048, b = 1, h = 1024;  // global, outside
  std::int64_t width = 128;                // of this rank, inside
  int chunks = 4;
  int repeats = 3;  // of the pass in one sample
  int samples = 7;  // of each form, in turn; their median counts
  LinkModel link{std::chrono::microseconds(100), 1e9};
};

struct OverlapTimes {
  double on = 0, off = 0, none = 0;  // seconds of one pass: overlapped, plain, without communication
  // Of the time that communication adds to the plain form, the part that overlap takes away.
  double hidden() const { return 1 - (on - none) / (off - none); }
};

enum class Form { kOverlapped, kPlain, kSilent };

// Seconds of one pass.
double sample(const OverlapSetup& setup, Form form) {
  double seconds = 0;
  run_local_ranks({.ranks = 2, .link = setup.link}, [&](Communicator& world) {
    using Clock = std::chrono::steady_clock;
    const auto arena = Arena::host(std::size_t{1} << 30);
    Workers workers(1);
    Lane lane{*arena, workers, {}};
    SilentCommunicator silent(world.rank(), 2);
    Communicator& tp = form == Form::kSilent ? static_cast<Communicator&>(silent) : world;
    const nn::ReplicatedBorder replicated(tp);
    const nn::SequenceParallelBorder cut(tp);
    const nn::ChunkedReplicatedBorder chunked_replicated(replicated, setup.chunks);
    const nn::ChunkedSequenceParallelBorder chunked_cut(cut, setup.chunks);
    const bool sp = setup.sequence_parallel, overlapped = form == Form::kOverlapped;
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
    Param w("w", weight, {{"w", weight, -1, 0, weight[0], 0, {}}}, true);
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
    const Tensor outside = tensor({sp ? setup.s / 2 : setup.s, setup.b, setup.h});
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

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// The forms run in turn, so that what else the machine does meets all of them alike.
OverlapTimes measure_overlap(const OverlapSetup& setup) {
  std::vector<double> on, off, none;
  for (int i = 0; i < setup.samples; ++i) {
    on.push_back(sample(setup, Form::kOverlapped));
    off.push_back(sample(setup, Form::kPlain));
    none.push_back(sample(setup, Form::kSilent));
  }
  return {median(on), median(off), median(none)};
}

// The width at which the products take `ratio` times as long as the communication, on this machine.
std::int64_t width_for(OverlapSetup setup, double ratio) {
  setup.width = 256;
  setup.samples = 3;
  const OverlapTimes times = measure_overlap(setup);
  const double width = 256 * ratio * std::max(times.off - times.none, 1e-6) / times.none;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(width) / 16 * 16, 16, 4096);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  using namespace weft;
  std::vector<int> chunks;
  for (int i = 1; i < argc; ++i) chunks.push_back(std::max(std::atoi(argv[i]), 1));
  if (chunks.empty()) chunks = {2, 4, 8};
  fmt::print("{:<26}{:>7}{:>7}{:>10}{:>10}{:>16}{:>8}\n", "", "width", "chunks", "T_on ms", "T_off ms",
             "T_without_comm", "hidden");
  for (const bool sequence_parallel : {true, false}) {
    for (const Pass pass :
         {Pass::kColumnForward, Pass::kColumnBackward, Pass::kRowForward, Pass::kRowBackward}) {
      // Without sequence parallel these two communicate nothing.
      if (!sequence_parallel && (pass == Pass::kColumnForward || pass == Pass::kRowBackward)) continue;
      OverlapSetup setup;
      setup.pass = pass;
      setup.sequence_parallel = sequence_parallel;
      setup.width = width_for(setup, 1.5);
      for (const int n : chunks) {
        setup.chunks = n;
        const OverlapTimes t = measure_overlap(setup);
        fmt::print("{:<26}{:>7}{:>7}{:>10.2f}{:>10.2f}{:>16.2f}{:>7.0f}%\n",
                   fmt::format("{}{}", name_of(pass), sequence_parallel ? "" : ", replicated"), setup.width,
                   n, t.on * 1e3, t.off * 1e3, t.none * 1e3, t.hidden() * 100);
        std::fflush(stdout);
      }
    }
  }
}
