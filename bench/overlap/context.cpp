// Ring attention (--context-parallel-size) beside the same ring that waits for each message before it goes
// on. T_none: messages take no time. The link's rate is set so that a block of attention takes 1.5 times as
// long as the messages that travel meanwhile: the next keys and values, and in the backward pass the sums of
// the last ones' gradients. Every message has a block, or half of one, to hide under: the bound is 1.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "nn/attention/context/ring_attention.hpp"
#include "ops/elementwise.hpp"
#include "overlap.hpp"

namespace weft::overlap {
namespace {

constexpr double kRatio = 1.5;
constexpr int kHeads = 4, kGroups = 2, kHeadSize = 64;

// Hands everything on; a message is over when its start returns.
class WaitingCommunicator final : public Communicator {
 public:
  explicit WaitingCommunicator(Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  std::uint64_t bytes_sent() const override { return inner_.bytes_sent(); }
  void barrier(Lane& lane) override { inner_.barrier(lane); }
  Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp op) override {
    return inner_.all_reduce(lane, x, op);
  }
  Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) override {
    return inner_.all_gather_into(lane, shard, full);
  }
  Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) override {
    return inner_.reduce_scatter_into(lane, full, shard);
  }
  Async<Tensor> all_to_all_into(Lane& lane, const Tensor& send, const std::vector<std::int64_t>& send_rows,
                                const Tensor& receive,
                                const std::vector<std::int64_t>& receive_rows) override {
    return inner_.all_to_all_into(lane, send, send_rows, receive, receive_rows);
  }
  Async<Tensor> broadcast(Lane& lane, const Tensor& x, int root) override {
    return inner_.broadcast(lane, x, root);
  }
  Async<std::vector<Tensor>> send_receive(Lane& lane, const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    return Async<std::vector<Tensor>>(inner_.send_receive(lane, sends, receives).wait(lane));
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    return inner_.split(color, key, name);
  }

 private:
  Communicator& inner_;
};

struct RingSetup {
  bool backward = false;
  int ranks = 2, threads = 1, repeats = 3;
  std::int64_t rows = 2048;  // of each rank
  LinkModel link;
};

double seconds_of(const RingSetup& setup, Form form) {
  double seconds = 0;
  LocalOptions options{.ranks = setup.ranks};
  if (form != Form::kNone) options.link = setup.link;
  run_local_ranks(options, [&](Communicator& world) {
    using Clock = std::chrono::steady_clock;
    const auto arena = Arena::host(std::size_t{1} << 28);
    Workers workers(setup.threads);
    Lane lane{*arena, workers, {}};
    WaitingCommunicator waiting(world);
    const nn::SequenceCut cut(nn::SequenceOrder::kZigzag, setup.rows * setup.ranks, setup.ranks);
    const nn::RingAttention ring({.head_dim = kHeadSize, .scale = 0.125},
                                 form == Form::kOff ? static_cast<Communicator&>(waiting) : world, cut);
    const auto tensor = [&](int heads) {
      const Tensor x = lane.alloc(DType::kF32, {setup.rows, 1, heads * kHeadSize}, "measured");
      float value = 0;
      for (float& element : x.values<float>()) {
        value = value * 1.7F + 0.31F;  // anything but one number
        element = value -= static_cast<float>(static_cast<int>(value));
      }
      return x;
    };
    const Tensor q = tensor(kHeads), k = tensor(kGroups), v = tensor(kGroups);
    const Tensor dout = tensor(kHeads), dq = tensor(kHeads), dk = tensor(kGroups), dv = tensor(kGroups);
    double spent = 0;
    for (int i = -1; i < setup.repeats; ++i) {  // the first touches the memory
      Microbatch mb;
      world.barrier(lane);
      auto start = Clock::now();
      ring.forward(lane, q, k, v, mb);
      if (setup.backward) {
        world.barrier(lane);
        start = Clock::now();
        ring.backward(lane, dout, dq, dk, dv, mb);
      }
      world.barrier(lane);
      const std::chrono::duration<double> time = Clock::now() - start;
      if (i >= 0) spent += time.count();
    }
    if (world.rank() == 0) seconds = spent / setup.repeats;
  });
  return seconds;
}

}  // namespace

void measure_context_parallel(const Settings& settings) {
  for (const int ranks : {2, 4}) {
    for (const bool backward : {false, true}) {
      RingSetup setup{.backward = backward, .ranks = ranks, .threads = settings.threads, .link = link()};
      if (settings.quick) setup.rows = 128, setup.repeats = 1;
      const double attention = seconds_of(setup, Form::kNone);
      // Keys and values; in the backward pass the sums of their gradients too.
      const int at_a_time = backward ? 2 : 1;
      const double messages = (ranks - 1) * at_a_time;
      const double bytes = static_cast<double>(setup.rows) * 2 * kGroups * kHeadSize * 4;
      const double latency = std::chrono::duration<double>(setup.link.latency).count();
      setup.link.bytes_per_second = bytes / std::max(attention / ranks / at_a_time / kRatio - latency, 1e-5);
      const Times times = take_turns(settings.rounds, [&](Form form) { return seconds_of(setup, form); });
      print({.what = fmt::format("ring attention, {}", backward ? "backward" : "forward"),
             .ranks = ranks,
             .times = times,
             .compute = times.none,
             .communication = messages * (latency + bytes / setup.link.bytes_per_second),
             .bound = 1});
    }
  }
}

}  // namespace weft::overlap
