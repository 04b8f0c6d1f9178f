// The mechanism alone: starting early and waiting late, by the code that a run has, with computing that
// sleeps. What real products hide depends on the machine besides; this does not.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "data_parallel/param_buffer.hpp"
#include "nn/chunked_border.hpp"
#include "ops/elementwise.hpp"
#include "overlap.hpp"
#include "pipeline/executor.hpp"
#include "pipeline/schedules.hpp"
#include "pipeline/simulate.hpp"
#include "silent_communicator.hpp"

namespace weft::overlap {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kRatio = 1.5;
constexpr std::int64_t kElems = 262'144;  // of a bucket or a message: 1 MiB of fp32

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
void compute(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}
// A message of so many bytes on the link.
double link_seconds(double bytes) {
  return std::chrono::duration<double>(link().latency).count() + bytes / link().bytes_per_second;
}

// Runs body(lane, communicator) on two ranks and returns what rank 0 says. kNone: nothing moves.
double on_two_ranks(Form form, const std::function<double(Lane&, Communicator&)>& body) {
  double seconds = 0;
  run_local_ranks({.ranks = 2, .link = form == Form::kNone ? std::nullopt : std::optional(link())},
                  [&](Communicator& world) {
                    const std::unique_ptr<Arena> arena = Arena::host(std::size_t{1} << 28);
                    Workers workers(1);
                    Lane lane{*arena, workers, {}};
                    SilentCommunicator silent(world.rank(), 2);
                    const double mine = body(lane, form == Form::kNone ? silent : world);
                    world.barrier(lane);
                    if (world.rank() == 0) seconds = mine;
                  });
  return seconds;
}

// A bucket for every parameter, and a part of the model that uses it and nothing else.
struct Buckets {
  Buckets(Lane& lane, Communicator& dp, int count, bool overlap, bool distributed) {
    for (int i = 0; i < count; ++i) {
      const std::string name = fmt::format("p{}", i);
      params.add(name, {{.name = name, .global = {kElems}, .count = kElems}}, {.block = i});
    }
    buffer.emplace(
        lane, params, dp,
        ParamBufferOptions{.bucket_elems = kElems, .overlap = overlap, .distributed = distributed});
  }
  ParamSet params;
  std::optional<ParamBuffer> buffer;
};

Row gradient_reduction(const Settings& settings) {
  const int count = settings.quick ? 8 : 32;
  const double message = link_seconds(4.0 * kElems), each = kRatio * message;
  const auto seconds = [&](Form form) {
    return on_two_ranks(form, [&](Lane& lane, Communicator& dp) {
      Buckets buckets(lane, dp, count, form != Form::kOff, false);
      dp.barrier(lane);
      const Clock::time_point start = Clock::now();
      buckets.buffer->begin_step(lane, 1);
      for (auto param = buckets.params.all().rbegin(); param != buckets.params.all().rend(); ++param) {
        compute(each);
        (*param)->ready();
      }
      buckets.buffer->finish_step();
      return seconds_since(start);
    });
  };
  return {"mechanism: gradient reduction",
          2,
          take_turns(settings.rounds, seconds),
          count * each,
          count * message,
          1 - 1.0 / count};
}

Row parameter_gather(const Settings& settings) {
  const int count = settings.quick ? 8 : 32;
  const double message = link_seconds(2.0 * kElems), each = kRatio * message;
  const auto seconds = [&](Form form) {
    return on_two_ranks(form, [&](Lane& lane, Communicator& dp) {
      Buckets buckets(lane, dp, count, true, true);
      dp.barrier(lane);
      const Clock::time_point start = Clock::now();
      buckets.buffer->start_gather(lane);
      if (form == Form::kOff) buckets.buffer->finish_gather(lane);
      for (int block = 0; block < count; ++block) {
        buckets.buffer->open(lane, block);
        compute(each);
      }
      return seconds_since(start);
    });
  };
  return {"mechanism: parameter gather",
          2,
          take_turns(settings.rounds, seconds),
          count * each,
          count * message,
          1 - 1.0 / count};
}

class SleepingStage final : public Stage {
 public:
  SleepingStage(double seconds, bool first, bool last) : seconds_(seconds), first_(first), last_(last) {}
  Tensor forward(Lane& lane, int, const Tensor&) override {
    compute(seconds_);
    return last_ ? Tensor() : message(lane);
  }
  Tensor backward(Lane& lane, int, const Tensor&) override {
    compute(seconds_);
    return first_ ? Tensor() : message(lane);
  }
  void weight_grad(Lane&, int) override {}
  Tensor message(Lane& lane) const override { return lane.alloc(DType::kF32, {kElems}, "message"); }

 private:
  double seconds_;
  bool first_, last_;
};

Row pipeline(const Settings& settings, PipelineSchedule schedule, int chunks) {
  const PipelineShape shape{
      .schedule = schedule, .ranks = 2, .chunks = chunks, .microbatches = settings.quick ? 4 : 32};
  const double message = link_seconds(4.0 * kElems), each = kRatio * message;
  const auto seconds = [&](Form form) {
    double result = 0;
    // Without the link's time messages still bring the ranks together.
    run_local_ranks(
        {.ranks = 2, .link = form == Form::kNone ? std::nullopt : std::optional(link())},
        [&](Communicator& world) {
          const std::unique_ptr<Arena> arena = Arena::host(std::size_t{1} << 28);
          Workers workers(1);
          Lane lane{*arena, workers, {}};
          std::vector<std::unique_ptr<Communicator>> channels;
          std::vector<Communicator*> pointers;
          for (int i = 0; i < 2 * (shape.stages() - 1); ++i) {
            const int from = rank_of(shape, i / 2);
            // In the order of the stages: the sender of activations is rank 0.
            channels.push_back(world.split(0, world.rank() == from ? 0 : 1, fmt::format("channel{}", i)));
            pointers.push_back(channels.back().get());
          }
          std::vector<SleepingStage> stages;
          for (int chunk = 0; chunk < chunks; ++chunk) {
            const int stage = stage_of(shape, world.rank(), chunk);
            stages.emplace_back(each, stage == 0, stage == shape.stages() - 1);
          }
          std::vector<Stage*> all;
          for (SleepingStage& stage : stages) all.push_back(&stage);
          Executor executor(all, pointers,
                            {.overlap = form != Form::kOff, .sends_in_flight = sends_in_flight(shape)});
          const Program program = make_program(shape, world.rank());
          world.barrier(lane);
          const Clock::time_point start = Clock::now();
          executor.run(lane, program);
          world.barrier(lane);
          if (world.rank() == 0) result = seconds_since(start);
        });
    return result;
  };
  // By the simulator: the same with messages in the way of nothing, and in the way of everything.
  const auto simulated = [&](double time) {
    return simulate(make_programs(shape), {.stages = {{.forward = each, .backward = each, .weight_grad = 0}},
                                           .message = time,
                                           .sends_in_flight = sends_in_flight(shape)})
        .makespan;
  };
  const Times times = take_turns(settings.rounds, seconds);
  const double bound = 1 - (simulated(message) - simulated(0)) / (times.off - times.none);
  return {fmt::format("mechanism: pipeline {}{}, m {}", name_of(schedule),
                      chunks > 1 ? fmt::format(" x{}", chunks) : "", shape.microbatches),
          2,
          times,
          each,
          message,
          bound};
}

Row linear(const Settings& settings, bool spread) {
  const std::int64_t rows = settings.quick ? 2048 : 16384, columns = 512;  // inside; 32 MiB
  const int chunks = 24;
  const double message = link_seconds(2.0 * static_cast<double>(rows * columns));
  const auto seconds = [&](Form form) {
    return on_two_ranks(form, [&](Lane& lane, Communicator& tp) {
      const nn::SequenceParallelBorder whole(tp);
      const nn::ChunkedSequenceParallelBorder border(whole, form == Form::kOff ? 1 : chunks);
      const Tensor x = lane.alloc(DType::kF32, {rows / 2, columns}, "x");
      ops::fill(lane, x, 1);
      const auto product = [&](const nn::Rows& inside, const Tensor&) {
        compute(kRatio * message * static_cast<double>(inside.count) / static_cast<double>(rows));
      };
      // The second pass is timed: it finds its memory mapped, as every step but a run's first does.
      Clock::time_point start;
      for (int pass = 0; pass < 2; ++pass) {
        tp.barrier(lane);
        start = Clock::now();
        if (spread) {
          border.spread_to(lane, x, product);
        } else {
          border.combine_from(lane, x.dtype(), x.shape(), product).wait(lane);
        }
      }
      return seconds_since(start);
    });
  };
  return {fmt::format("mechanism: linear, {}, {} chunks", spread ? "all-gather" : "reduce-scatter", chunks),
          2,
          take_turns(settings.rounds, seconds),
          kRatio * message,
          message,
          1 - 1.0 / chunks};
}

}  // namespace

void measure_mechanism(const Settings& settings) {
  print(gradient_reduction(settings));
  print(parameter_gather(settings));
  print(pipeline(settings, PipelineSchedule::kInterleaved, 2));
  print(pipeline(settings, PipelineSchedule::k1F1B, 1));
  print(linear(settings, true));
  print(linear(settings, false));
}

}  // namespace weft::overlap
