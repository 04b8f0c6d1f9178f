#include "train/plan_report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pipeline/simulate.hpp"
#include "train/device_memory.hpp"

namespace weft {
namespace {

double mib(double bytes) {
  return bytes / (1 << 20);
}

// Rows of words, the first left and the others right aligned, each column as wide as its widest word.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    text += '\n';
  }
  return text;
}

std::string memory_table(const RunPlan& plan) {
  std::vector<std::vector<std::string>> rows{{"pipeline rank", "parameters", "weights", "gradients",
                                              "optimizer", "tables", "in flight", "activations", "peak"}};
  const auto text = [](auto bytes) { return fmt::format("{:.1f}", mib(static_cast<double>(bytes))); };
  for (std::size_t pp = 0; pp < plan.ranks.size(); ++pp) {
    const RankPlan& rank = plan.ranks[pp];
    const MemoryPlan& m = rank.memory;
    rows.push_back({std::to_string(pp), std::to_string(m.parameters), text(m.weights), text(m.gradients),
                    text(m.optimizer), text(m.tables), std::to_string(rank.in_flight),
                    text(rank.saved_activations), text(m.arena)});
  }
  return table(rows);
}

// One column for each group that carries anything.
std::string traffic_table(const RunPlan& plan) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : plan.ranks.front().traffic) {
    const auto sends = [&, &key = name](const RankPlan& rank) { return rank.traffic.at(key) > 0; };
    if (std::any_of(plan.ranks.begin(), plan.ranks.end(), sends)) names.push_back(name);
  }
  if (names.empty()) return "nothing: there is one rank\n";
  std::vector<std::vector<std::string>> rows{{"pipeline rank"}};
  rows[0].insert(rows[0].end(), names.begin(), names.end());
  rows[0].emplace_back("total");
  for (std::size_t pp = 0; pp < plan.ranks.size(); ++pp) {
    std::vector<std::string>& row = rows.emplace_back(1, std::to_string(pp));
    for (const std::string& name : names) {
      row.push_back(fmt::format("{:.3f}", mib(static_cast<double>(plan.ranks[pp].traffic.at(name)))));
    }
    row.push_back(fmt::format("{:.3f}", mib(static_cast<double>(total(plan.ranks[pp].traffic)))));
  }
  return table(rows);
}

nlohmann::ordered_json json_of(const StageRange& stage) {
  return {{"embedding", stage.embedding},
          {"first_layer", stage.first_layer},
          {"layers", stage.layers},
          {"loss", stage.loss}};
}

nlohmann::ordered_json json_of(const RankPlan& rank) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageRange& stage : rank.stages) stages.push_back(json_of(stage));
  const MemoryPlan& m = rank.memory;
  return {{"stages", stages},
          {"parameters", m.parameters},
          {"weights", m.weights},
          {"gradients", m.gradients},
          {"optimizer", m.optimizer},
          {"tables", m.tables},
          {"activations_of_a_microbatch", m.activations},
          {"in_flight", rank.in_flight},
          {"saved_activations", rank.saved_activations},
          {"peak", m.arena},
          {"bytes_sent", rank.traffic},
          {"total_bytes_sent", total(rank.traffic)}};
}

std::string time_text(const RunPlan& plan) {
  if (!plan.rates) {
    return "\ntime of a step: nothing is known of this device at this precision; weft bench op --save-rates "
           "on "
           "it writes the rates, and --rates FILE reads them here\n";
  }
  const Rates& r = *plan.rates;
  const StepTime& t = plan.time;
  const auto ms = [](double seconds) { return 1e3 * seconds; };
  std::string text = fmt::format(
      "\ntime of a step: {:.1f} ms predicted, {:.0f} tokens/s, {:.3g} TFLOP/s of a device{}\n"
      "  compute {:.1f}, exposed communication {:.1f}, bubble {:.1f}, optimizer {:.1f} ms, of the rank that "
      "ends "
      "last\n"
      "rates ({}): {}{}: copies {:.4g} GB/s, {} products {:.4g} TFLOP/s",
      ms(t.seconds), t.tokens_per_second, t.flops_per_device / 1e12,
      t.mfu > 0 ? fmt::format(", MFU {:.1f} % of {:.4g}", 100 * t.mfu, r.peak / 1e12) : "",
      ms(t.split.compute), ms(t.split.exposed), ms(t.split.bubble), ms(t.split.optimizer), r.source, r.device,
      r.threads > 0 ? fmt::format(", {} threads a rank", r.threads) : "", r.copy_rate / 1e9, name_of(r.dtype),
      r.product_rate / 1e12);
  if (plan.layout.world() > 1) {
    const auto link = [](const Link& l) {
      return fmt::format("{:.4g} GB/s + {:.4g} us", l.bytes_per_second / 1e9, 1e6 * l.latency);
    };
    text += fmt::format("; messages among {} ranks of a machine {}, beyond {}", r.ranks_per_node,
                        link(r.node), link(r.network));
  }
  return text + (r.source == "built in" ? "; assumed, not measured here\n" : "\n");
}

nlohmann::ordered_json json_of_time(const RunPlan& plan) {
  if (!plan.rates) return nullptr;
  const StepTime& t = plan.time;
  return {{"step_ms", 1e3 * t.seconds},
          {"tokens_per_second", t.tokens_per_second},
          {"tflops_per_device", t.flops_per_device / 1e12},
          {"mfu", t.mfu > 0 ? nlohmann::ordered_json(t.mfu) : nlohmann::ordered_json(nullptr)},
          {"compute_ms", 1e3 * t.split.compute},
          {"exposed_communication_ms", 1e3 * t.split.exposed},
          {"bubble_ms", 1e3 * t.split.bubble},
          {"optimizer_ms", 1e3 * t.split.optimizer},
          {"device", plan.rates->device},
          {"rates", plan.rates->source}};
}

}  // namespace

std::size_t RunPlan::memory() const {
  std::size_t sum = 0;
  for (const RankPlan& rank : ranks) sum += rank.memory.arena;
  return sum * static_cast<std::size_t>(layout.world()) / ranks.size();
}

std::uint64_t RunPlan::traffic() const {
  std::uint64_t sum = 0;
  for (const RankPlan& rank : ranks) sum += total(rank.traffic);
  return sum * static_cast<std::uint64_t>(layout.world()) / ranks.size();
}

const RankPlan& RunPlan::largest() const {
  return *std::max_element(ranks.begin(), ranks.end(), [](const RankPlan& a, const RankPlan& b) {
    return a.memory.arena < b.memory.arena;
  });
}

double bubble_of(const PipelineShape& shape) {
  const std::vector<double> ends = pipeline_ends(shape, {});
  const double makespan = *std::max_element(ends.begin(), ends.end());
  const StageCost cost;
  return makespan / (shape.microbatches * shape.chunks * (cost.forward + cost.backward + cost.weight_grad)) -
         1;
}

RunPlan plan_of_run(const TrainConfig& config, const std::optional<Rates>& rates) {
  const EngineOptions options = EngineOptions::from(config);
  RunPlan plan{.layout = options.layout, .parameters = parameter_count(config.model)};
  if (options.device == DeviceKind::kCuda) plan.beside = kBesideArena;
  const bool evaluation = config.training.eval_iters > 0 && config.data.batches.empty();
  std::vector<StepPlan> steps =
      plan_step(options, plan.layout.pipeline.microbatches, evaluation,
                threads_per_rank(config.training.cpu_threads, plan.layout.world()), rates);
  if (rates) {
    std::vector<RankTime> times;
    for (const StepPlan& step : steps) times.push_back(step.time);
    plan.rates = rates;
    plan.time = step_time(options, *rates, times, plan.layout.pipeline.microbatches);
  }
  // What the schedule keeps, with the activations of each stage.
  SimulationInput input{.stages = std::vector<StageCost>(plan.layout.stages.size())};
  for (std::size_t pp = 0; pp < steps.size(); ++pp) {
    const std::vector<std::size_t>& chunks = steps[pp].memory.chunk_activations;
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      const int stage = stage_of(plan.layout.pipeline, static_cast<int>(pp), static_cast<int>(chunk));
      input.stages[static_cast<std::size_t>(stage)].saved_bytes = static_cast<std::int64_t>(chunks[chunk]);
      input.stages[static_cast<std::size_t>(stage)].pending_bytes = 0;
    }
  }
  const PipelineShape& pipeline = plan.layout.pipeline;
  const bool all = form_of(pipeline.schedule).keeps_all;
  const SimulationResult result = simulate(make_programs(all ? pipeline : steady(pipeline, 8)), input);
  for (std::size_t pp = 0; pp < steps.size(); ++pp) {
    plan.ranks.push_back({.stages = plan.layout.stages_of(static_cast<int>(pp)),
                          .memory = std::move(steps[pp].memory),
                          .in_flight = result.ranks[pp].peak_in_flight,
                          .saved_activations = result.ranks[pp].peak_bytes,
                          .traffic = std::move(steps[pp].traffic)});
  }
  plan.bubble = bubble_of(plan.layout.pipeline);
  return plan;
}

std::string to_string(const RunPlan& plan) {
  const MeshSizes& mesh = plan.layout.mesh;
  const PipelineShape& shape = plan.layout.pipeline;
  const auto largest = static_cast<std::size_t>(&plan.largest() - plan.ranks.data());
  return fmt::format(
             "{} parameters on {} ranks: tp {}{}, pp {}, dp {}\n{}\n{} microbatches of each pipeline, {}{}, "
             "bubble {:.2f} % (idle over busy time)\n\nmemory of a rank (MiB; activations: what the schedule "
             "keeps for so many "
             "chunks x microbatches in flight)\n",
             plan.parameters, plan.layout.world(), mesh.tp,
             mesh.cp > 1 ? fmt::format(", cp {}", mesh.cp) : "", mesh.pp, mesh.dp,
             to_string(plan.layout.stages), shape.microbatches, name_of(shape.schedule),
             shape.chunks > 1 ? fmt::format(" with {} stages on a rank", shape.chunks) : "",
             100 * plan.bubble) +
         memory_table(plan) +
         (plan.beside > 0
              ? fmt::format(
                    "beside it, on the GPU: about {:.0f} MiB of CUDA's context, kernels and handles{}\n",
                    mib(static_cast<double>(plan.beside)),
                    plan.layout.world() > 1 ? ", and NCCL's buffers" : "")
              : "") +
         "\nsent by a rank in a step (MiB)\n" + traffic_table(plan) + time_text(plan) +
         fmt::format(
             "\npeak={}\npeak_pipeline_rank={}\ntotal_memory={}\ntotal_bytes_sent={}\nbubble={:.6g}\n",
             plan.largest().memory.arena, largest, plan.memory(), plan.traffic(), plan.bubble) +
         (plan.rates ? fmt::format("step_ms={:.6g}\n", 1e3 * plan.time.seconds) : "");
}

std::string to_json(const RunPlan& plan) {
  const MeshSizes& mesh = plan.layout.mesh;
  const PipelineShape& shape = plan.layout.pipeline;
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankPlan& rank : plan.ranks) ranks.push_back(json_of(rank));
  const nlohmann::ordered_json all{{"parameters", plan.parameters},
                                   {"ranks", plan.layout.world()},
                                   {"tensor_parallel", mesh.tp},
                                   {"context_parallel", mesh.cp},
                                   {"pipeline_parallel", mesh.pp},
                                   {"data_parallel", mesh.dp},
                                   {"schedule", name_of(shape.schedule)},
                                   {"stages_of_a_rank", shape.chunks},
                                   {"microbatches", shape.microbatches},
                                   {"bubble", plan.bubble},
                                   {"beside_the_arena", plan.beside},
                                   {"total_memory", plan.memory()},
                                   {"total_bytes_sent", plan.traffic()},
                                   {"step_time", json_of_time(plan)},
                                   {"pipeline_ranks", ranks}};
  // A file's name need not be UTF-8.
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace weft
