#include "engine_run.hpp"

#include <algorithm>

#include "train/plan.hpp"

namespace weft::overlap {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// Any tokens will do.
void fill(const EngineOptions& options, std::int64_t number, Batch& out) {
  out = Batch{};
  out.sequence_length = options.sequence_length;
  for (; out.rows < options.micro_batch; ++out.rows) {
    for (std::int64_t i = 0; i < options.sequence_length; ++i) {
      const auto token = static_cast<std::int32_t>((number * 31 + i * i * 7 + i) % options.model.vocab_size);
      out.tokens.push_back(token);
      out.labels.push_back(static_cast<std::int32_t>((token + 1) % options.model.vocab_size));
    }
    out.sample_ids.push_back(number++);
  }
  out.target_tokens = out.rows * out.sequence_length;
}

// `gathers`: one whole round of them, the last bucket in memory first.
std::vector<std::vector<int>> buckets_of_blocks(const ParamBuffer& buffer,
                                                const std::vector<Traffic::Started>& gathers) {
  std::vector<std::vector<int>> of_block;
  for (const ParamBuffer::Slot& slot : buffer.slots()) {
    const auto block = static_cast<std::size_t>(slot.param->traits().block);
    of_block.resize(std::max(of_block.size(), block + 1));
    const auto begin = static_cast<std::uint64_t>(slot.offset) * bytes_of(buffer.weights().dtype());
    std::uint64_t end = buffer.weights().bytes();  // of the bucket
    for (std::size_t i = 0; i < gathers.size(); end -= gathers[i++].full_bytes) {
      // No parameter lies in two buckets.
      if (begin < end && begin >= end - gathers[i].full_bytes) of_block[block].push_back(static_cast<int>(i));
    }
  }
  return of_block;
}

}  // namespace

ModelConfig small_llama(std::int64_t layers, std::int64_t hidden) {
  ModelConfig c;
  c.num_layers = layers;
  c.hidden_size = hidden;
  c.num_attention_heads = std::max<std::int64_t>(hidden / 64, 1);
  c.vocab_size = 256;
  c.max_position_embeddings = 4096;
  c.position_embedding = PositionEmbedding::kRope;
  c.normalization = Normalization::kRmsNorm;
  c.gated = true;
  c.activation = ops::Activation::kSilu;
  c.add_bias_linear = false;
  c.tied = false;
  c.hidden_dropout = c.attention_dropout = 0;
  return resolved(c);
}

EngineTimes run_engine(const EngineRun& run) {
  const EngineOptions& options = run.options;
  const std::vector<MemoryPlan> plans = plan_training(options, run.microbatches, run.forward, run.threads);
  EngineTimes times;
  const int ranks = options.layout.world();
  run_local_ranks(
      {.ranks = ranks, .timeout = std::chrono::minutes(2), .link = run.link}, [&](Communicator& local) {
        Traffic traffic{.without_reductions = run.without_reductions, .without_gathers = run.without_gathers};
        ObservedCommunicator world(local, traffic, false);
        const Groups groups(world, options.layout);
        const auto stage = static_cast<std::size_t>(groups.mesh().coordinate(Axis::kPp));
        // With room for the holes that many microbatches leave.
        const auto arena = Arena::host(2 * plans[stage].arena);
        Workers workers(run.threads);
        Lane lane{*arena, workers, {}};
        Engine engine(lane, groups, options);
        engine.initialize();
        const MicrobatchSource source = [&](std::int64_t index, Batch& out) {
          fill(options, index * groups.dp_cp().size() + groups.dp_cp().rank(), out);
        };

        // No barrier between steps: what one leaves to the next is part of the time. All ranks meet in each.
        Clock::time_point first, begin;
        for (int i = 0; i <= run.steps; ++i) {
          begin = Clock::now();
          if (i == 1) first = begin;
          traffic.reductions.clear();
          traffic.gathers.clear();
          engine.train_step({.iteration = i + 1,
                             .microbatches = run.microbatches,
                             .source = source,
                             .lr = 1e-5,
                             .weight_decay = 0.01});
        }
        const double step = seconds(Clock::now() - first) / run.steps;
        engine.flush();
        double forward = 0;
        if (run.forward) {
          world.barrier(lane);
          const auto before = Clock::now();
          for (int i = 0; i < run.steps; ++i) engine.evaluate(run.microbatches, source);
          forward = seconds(Clock::now() - before) / run.steps;
        }
        if (world.rank() != 0) return;
        times = {.step = step,
                 .forward = forward,
                 .last_reduction =
                     traffic.reductions.empty() ? 0 : seconds(traffic.reductions.back().when - begin),
                 .traffic = traffic,
                 .buckets = buckets_of_blocks(engine.buffer(), traffic.gathers)};
      });
  return times;
}

}  // namespace weft::overlap
