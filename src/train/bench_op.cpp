#include "train/bench_op.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/gpu.hpp"
#include "core/memory.hpp"
#include "ops/elementwise.hpp"
#include "train/cost_recorder.hpp"
#include "train/engine.hpp"
#include "train/op_cases.hpp"
#include "train/rank_device.hpp"

namespace weft {
namespace {

// The model and the microbatch, where nothing was said.
void use_defaults(TrainConfig& config, const BenchOpOptions& options, bool cuda) {
  ModelConfig& m = config.model;
  if (m.num_layers == 0 && m.hidden_size == 0 && m.num_attention_heads == 0) {
    m.num_layers = cuda ? 12 : 4;
    m.hidden_size = cuda ? 768 : 256;
    m.num_attention_heads = cuda ? 12 : 4;
    if (!options.batch_given && config.training.micro_batch_size == 1)
      config.training.micro_batch_size = cuda ? 64 : 4;
  }
  if (m.num_layers == 0) m.num_layers = 1;
  if (m.vocab_size == 0) m.vocab_size = cuda ? 50257 : 8192;
  if (config.data.seq_length == 0) config.data.seq_length = cuda ? 1024 : 256;
  if (m.max_position_embeddings == 0) m.max_position_embeddings = config.data.seq_length;
}

OpShapes shapes_of(const TrainConfig& config, const BenchOpOptions& options, DType dtype) {
  std::vector<std::string> problems = problems_of(config.model);
  OpShapes shapes{.model = resolved(config.model),
                  .sequence = config.data.seq_length,
                  .batch = config.training.micro_batch_size,
                  .dtype = dtype};
  if (options.tokens > 0) {
    shapes.sequence = std::min(shapes.sequence, options.tokens);
    if (options.tokens % shapes.sequence != 0) {
      problems.push_back(
          fmt::format("--tokens {} is no multiple of --seq-length {}", options.tokens, shapes.sequence));
    }
    shapes.batch = options.tokens / shapes.sequence;
  }
  constexpr std::int64_t kMostTokens = (std::int64_t{1} << 31) - 1;
  if (shapes.sequence > kMostTokens / std::max<std::int64_t>(shapes.batch, 1)) {
    problems.push_back(fmt::format("--micro-batch-size {} x --seq-length {} are more than {} tokens",
                                   shapes.batch, shapes.sequence, kMostTokens));
  }
  const std::vector<std::string> names = op_names();
  for (const std::string& op : options.ops) {
    if (std::find(names.begin(), names.end(), op) != names.end()) continue;
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    problems.push_back(fmt::format("--op {} is none of {}", op, list));
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  shapes.parameters =
      options.parameters > 0 ? static_cast<std::int64_t>(options.parameters) : parameter_count(shapes.model);
  return shapes;
}

// What a case needs of memory, and what its operations cost: both known without running it.
struct Dry {
  std::size_t bytes = 0;
  std::vector<OperationCost> costs;
};

Dry dry_run(const OpCase& c, DeviceKind kind, Workers& workers) {
  const std::unique_ptr<Arena> arena = Arena::meta(kind);
  CostRecorder recorder;
  Lane lane{*arena, workers, {}, &recorder};
  const PreparedOp op = c.prepare(lane);
  op.before();
  recorder.trace(true);
  op.run();
  Dry dry;
  for (TracedOperation& traced : recorder.traced()) dry.costs.push_back(std::move(traced.cost));
  dry.bytes = arena->high_water();
  return dry;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double median_ms(Lane& lane, const PreparedOp& op, std::int64_t rounds) {
  op.run();  // chooses its algorithm, touches its memory
  std::vector<double> ms;
  for (std::int64_t i = 0; i < rounds; ++i) {
    op.before();
    ms.push_back(milliseconds(lane, op.run));
  }
  return median(std::move(ms));
}

void check_room(std::size_t bytes, DeviceKind kind) {
  const std::size_t room = kind == DeviceKind::kCuda ? gpu_memory(0).free : available_memory();
  if (bytes <= room) return;
  config_fail(
      "the largest operation needs {:.1f} MiB, and {:.1f} MiB are free on the {}; take fewer --tokens or "
      "--params, a smaller --micro-batch-size, or name others with --op",
      static_cast<double>(bytes) / (1 << 20), static_cast<double>(room) / (1 << 20),
      kind == DeviceKind::kCuda ? "GPU" : "machine");
}

std::string line(const OpTime& t) {
  const double rate = (t.flops > 0 ? t.flops : t.bytes) / std::max(t.ms, 1e-9) * 1e3;
  const bool tera = t.flops > 0 && rate >= 1e12;
  return fmt::format("{:<24} {:<36} {:>10.4f} {:>10.4f} {:>6.2f} {:>9.1f} {}\n", t.op, t.shape, t.ms,
                     t.floor_ms, t.floor_ms / std::max(t.ms, 1e-9), rate / (tera ? 1e12 : 1e9),
                     t.flops == 0 ? "GB/s"
                     : tera       ? "TFLOP/s"
                                  : "GFLOP/s");
}

}  // namespace

BenchOpResult run_bench_op(TrainConfig config, const BenchOpOptions& options) {
  choose_device(config, 1);
  BenchOpResult result;
  result.kind =
      config.parallel.device == ParallelConfig::Device::kCuda ? DeviceKind::kCuda : DeviceKind::kCpu;
  use_defaults(config, options, result.kind == DeviceKind::kCuda);
  result.dtype = dtype_of_precision(config.training.precision());
  result.device = device_name(result.kind);
  result.threads = result.kind == DeviceKind::kCpu ? threads_per_rank(config.training.cpu_threads, 1) : 0;
  const OpShapes shapes = shapes_of(config, options, result.dtype);
  result.head_size = shapes.head_size();

  std::vector<OpCase> cases;
  for (OpCase& c : op_cases(shapes)) {
    const auto asked = [&](const std::string& name) { return op_matches(c.op, name); };
    if (options.ops.empty() || std::any_of(options.ops.begin(), options.ops.end(), asked))
      cases.push_back(std::move(c));
  }
  Workers workers(threads_per_rank(config.training.cpu_threads, 1));
  const CeilingSizes sizes = CeilingSizes::of(result.kind);
  std::vector<Dry> dry;
  std::size_t bytes = sizes.bytes(result.dtype);
  for (const OpCase& c : cases) {
    dry.push_back(dry_run(c, result.kind, workers));
    bytes = std::max(bytes, dry.back().bytes + (std::size_t{1} << 16));
  }
  check_room(bytes, result.kind);
  RankDevice device(result.kind, 0,
                    {.arena = bytes,
                     .items = {{"the largest operation", bytes}},
                     .fixes = {"smaller shapes, or other --op"}},
                    workers);
  Lane& lane = device.lane();
  result.ceilings = measure_ceilings(lane, result.dtype, sizes);
  const double copy_rate = result.ceilings.copy_rate, product_rate = result.ceilings.product_rate;
  {
    const Tensor one = lane.alloc(DType::kF32, {1}, "bench");
    result.per_operation_ms = median_ms(lane, {[&] { ops::fill(lane, one, 1); }}, options.rounds);
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    OpTime time{.op = cases[i].op, .shape = cases[i].shape};
    for (const OperationCost& cost : dry[i].costs) {
      time.bytes += cost.bytes;
      time.flops += cost.flops;
      time.floor_ms += 1e3 * std::max(cost.bytes / copy_rate, cost.flops / product_rate);
    }
    time.costs = std::move(dry[i].costs);
    time.ms = median_ms(lane, cases[i].prepare(lane), options.rounds);
    result.times.push_back(std::move(time));
  }
  return result;
}

std::string to_string(const BenchOpResult& r) {
  std::string text = fmt::format(
      "{} in {}{}: copies {:.1f} GB/s, products {:.3f} TFLOP/s, an operation of nothing {:.4f} ms\n"
      "floor: the larger of an operation's bytes and its products at these rates (causal attention halved)\n"
      "{:<24} {:<36} {:>10} {:>10} {:>6} {:>9}\n",
      r.device, name_of(r.dtype), r.threads > 0 ? fmt::format(", {} threads", r.threads) : "",
      r.ceilings.copy_rate / 1e9, r.ceilings.product_rate / 1e12, r.per_operation_ms, "operation", "shape",
      "ms", "floor ms", "ratio", "rate");
  for (const OpTime& t : r.times) text += line(t);
  return text;
}

Rates rates_of(const BenchOpResult& r) {
  Rates rates{.device = r.device,
              .kind = r.kind,
              .dtype = r.dtype,
              .threads = r.threads,
              .copy_rate = r.ceilings.copy_rate,
              .product_rate = r.ceilings.product_rate,
              .peak = peak_of(r.device, r.dtype),
              .per_operation = r.per_operation_ms / 1e3};
  struct Sums {
    double floor = 0, time = 0;
  };
  std::map<std::string, Sums> families;
  Sums memory;  // of all that moves memory only
  for (const OpTime& t : r.times) {
    // A case of several operations says nothing of each of them.
    if (t.costs.size() != 1 || t.floor_ms <= 0) continue;
    Sums& sums = families[family_of(t.costs.front(), r.head_size)];
    // At least a tenth of what was measured: a tiny shape is nothing but the call.
    const double time = std::max(t.ms - r.per_operation_ms, t.ms / 10);
    for (Sums* s : {&sums, t.flops > 0 ? nullptr : &memory}) {
      if (s == nullptr) continue;
      s->floor += t.floor_ms;
      s->time += time;
    }
  }
  for (const auto& [family, sums] : families) rates.efficiency[family] = sums.floor / sums.time;
  if (memory.time > 0) rates.efficiency["other"] = memory.floor / memory.time;
  assume_links(rates);
  return rates;
}

}  // namespace weft
