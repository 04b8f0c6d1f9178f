#include "pipeline/schedules.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/check.hpp"

namespace weft {
namespace {

// Writes the order of one rank; knows which microbatch of a chunk is next.
class Order {
 public:
  Order(const PipelineShape& shape, int rank)
      : microbatches_(shape.microbatches), next_(static_cast<std::size_t>(shape.chunks)) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) stages_.push_back(stage_of(shape, rank, chunk));
  }

  // Each does the next microbatch of the chunk, or nothing when there is none that the rank could do.
  void forward(int chunk = 0) {
    if (forwards(chunk) < microbatches_) add(ActionKind::kForward, chunk, next_of(chunk).forward++);
  }
  void backward(int chunk = 0) {
    if (backwards(chunk) < forwards(chunk)) add(ActionKind::kBackward, chunk, next_of(chunk).backward++);
  }
  void weight_grad(int chunk = 0) {
    if (pending(chunk) > 0) add(ActionKind::kWeightGrad, chunk, next_of(chunk).weight_grad++);
  }
  void full_backward(int chunk = 0) {
    backward(chunk);
    weight_grad(chunk);
  }
  // The oldest weight gradient of two chunks.
  void oldest_weight_grad() {
    const bool second = pending(1) > 0 && (pending(0) == 0 || weight_grads(1) < weight_grads(0));
    weight_grad(second ? 1 : 0);
  }

  int forwards(int chunk = 0) const { return next_[static_cast<std::size_t>(chunk)].forward; }
  int backwards(int chunk = 0) const { return next_[static_cast<std::size_t>(chunk)].backward; }
  int weight_grads(int chunk = 0) const { return next_[static_cast<std::size_t>(chunk)].weight_grad; }
  int pending(int chunk = 0) const { return backwards(chunk) - weight_grads(chunk); }

  Program take() { return std::move(program_); }

 private:
  struct Next {
    int forward = 0, backward = 0, weight_grad = 0;
  };
  Next& next_of(int chunk) { return next_[static_cast<std::size_t>(chunk)]; }
  void add(ActionKind kind, int chunk, int microbatch) {
    program_.push_back({kind, stages_[static_cast<std::size_t>(chunk)], chunk, microbatch});
  }

  int microbatches_;
  std::vector<Next> next_;
  std::vector<int> stages_;
  Program program_;
};

Program gpipe(const PipelineShape& shape, int rank) {
  Order order(shape, rank);
  for (int i = 0; i < shape.microbatches; ++i) order.forward();
  for (int i = 0; i < shape.microbatches; ++i) order.full_backward();
  return order.take();
}

Program one_forward_one_backward(const PipelineShape& shape, int rank) {
  Order order(shape, rank);
  for (int i = 0; i < shape.ranks - rank - 1; ++i) order.forward();
  while (order.backwards() < shape.microbatches) {
    order.forward();
    order.full_backward();
  }
  return order.take();
}

// Weight gradients stay `rank` microbatches behind: what the later ranks hold back fills the gaps that they
// have while the last gradients travel to the first rank.
Program zero_bubble_h1(const PipelineShape& shape, int rank) {
  Order order(shape, rank);
  for (int i = 0; i < shape.ranks - rank - 1; ++i) order.forward();
  while (order.backwards() < shape.microbatches) {
    order.forward();
    order.backward();
    if (order.pending() > rank) order.weight_grad();
  }
  while (order.pending() > 0) order.weight_grad();
  return order.take();
}

// Rank r fills with chunk 0 until its first chunk 1 arrives from below (2 (P - r) - 1 forwards), and then
// takes both in turn; at most 2 P chunks are live. With F = B = W and M >= 2 P - 1 no rank waits after its
// first action.
Program zero_bubble_v(const PipelineShape& shape, int rank) {
  const int up = shape.ranks - rank, all = shape.microbatches;
  Order order(shape, rank);
  for (int i = 0; i < 2 * up - 1; ++i) order.forward(0);
  for (int i = 0; i < rank; ++i) {
    order.forward(1);
    order.forward(0);
  }
  for (int i = 0; i < up; ++i) {
    order.forward(1);
    order.full_backward(1);
  }
  while (order.forwards(0) < all || order.forwards(1) < all) {
    order.forward(0);
    order.full_backward(0);
    order.forward(1);
    order.full_backward(1);
  }
  for (int i = 0; i < rank; ++i) {
    order.backward(0);
    order.backward(1);
  }
  while (order.backwards(0) < all || order.backwards(1) < all) {
    order.backward(order.backwards(1) < all && order.backwards(1) <= order.backwards(0) ? 1 : 0);
    order.oldest_weight_grad();
  }
  while (order.pending(0) + order.pending(1) > 0) order.oldest_weight_grad();
  return order.take();
}

// The chunks in the order of their turns: groups of microbatches, and in each group chunk after chunk.
std::vector<int> turns(const PipelineShape& shape) {
  const int group = shape.group > 0 ? shape.group : shape.ranks;
  std::vector<int> chunks;
  for (int begin = 0; begin < shape.microbatches; begin += group) {
    const int size = std::min(group, shape.microbatches - begin);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) chunks.insert(chunks.end(), size, chunk);
  }
  return chunks;
}

// Megatron's interleaved schedule: 2 (P - r - 1) + (V - 1) N forwards first, N = microbatches in a group.
Program interleaved(const PipelineShape& shape, int rank) {
  const std::vector<int> chunks = turns(shape);
  const int group = shape.group > 0 ? shape.group : shape.ranks;
  const std::size_t warm_up =
      std::min<std::size_t>(chunks.size(), static_cast<std::size_t>(2 * (shape.ranks - rank - 1)) +
                                               static_cast<std::size_t>(shape.chunks - 1) * group);
  Order order(shape, rank);
  for (std::size_t i = 0; i < chunks.size() + warm_up; ++i) {
    if (i < chunks.size()) order.forward(chunks[i]);
    if (i >= warm_up) order.full_backward(shape.chunks - 1 - chunks[i - warm_up]);
  }
  return order.take();
}

Program forward_only(const PipelineShape& shape, int rank) {
  Order order(shape, rank);
  for (int chunk : turns(shape)) order.forward(chunk);
  return order.take();
}

constexpr ScheduleForm kForms[] = {
    {.schedule = PipelineSchedule::kGpipe, .name = "gpipe", .order = gpipe, .keeps_all = true},
    {.schedule = PipelineSchedule::k1F1B, .name = "1f1b", .order = one_forward_one_backward},
    {.schedule = PipelineSchedule::kInterleaved, .name = "interleaved", .order = interleaved, .chunks = 0},
    {.schedule = PipelineSchedule::kZbH1,
     .name = "zb-h1",
     .order = zero_bubble_h1,
     .defers_weight_gradients = true},
    {.schedule = PipelineSchedule::kZbV,
     .name = "zb-v",
     .order = zero_bubble_v,
     .chunks = 2,
     .v_shaped = true,
     .defers_weight_gradients = true},
};

// The receive that an action waits for, if its data comes from another rank.
bool needs_message(const PipelineShape& shape, int rank, const Action& action, Action& receive) {
  if (action.kind == ActionKind::kWeightGrad) return false;
  const bool gradient = is_gradient(action.kind);
  const int from = action.stage + (gradient ? 1 : -1);
  if (from < 0 || from >= shape.stages() || rank_of(shape, from) == rank) return false;
  receive = {gradient ? ActionKind::kReceiveGradient : ActionKind::kReceiveActivation,
             action.stage,
             action.chunk,
             action.microbatch,
             rank_of(shape, from),
             channel_of(std::min(from, action.stage), gradient)};
  return true;
}

bool makes_message(const PipelineShape& shape, int rank, const Action& action, Action& send) {
  if (action.kind == ActionKind::kWeightGrad) return false;
  const bool gradient = is_gradient(action.kind);
  const int to = action.stage + (gradient ? -1 : 1);
  if (to < 0 || to >= shape.stages() || rank_of(shape, to) == rank) return false;
  send = {gradient ? ActionKind::kSendGradient : ActionKind::kSendActivation,
          action.stage,
          action.chunk,
          action.microbatch,
          rank_of(shape, to),
          channel_of(std::min(to, action.stage), gradient)};
  return true;
}

}  // namespace

std::span<const ScheduleForm> pipeline_schedules() {
  return kForms;
}

const ScheduleForm& form_of(PipelineSchedule schedule) {
  const auto* row = std::find_if(std::begin(kForms), std::end(kForms),
                                 [&](const ScheduleForm& form) { return form.schedule == schedule; });
  WEFT_CHECK(row != std::end(kForms), "pipeline schedule {} has no row in kForms",
             static_cast<int>(schedule));
  return *row;
}

const char* name_of(PipelineSchedule schedule) {
  return form_of(schedule).name;
}

std::vector<std::pair<std::string, PipelineSchedule>> schedule_choices() {
  std::vector<std::pair<std::string, PipelineSchedule>> choices;
  for (const ScheduleForm& form : pipeline_schedules()) choices.emplace_back(form.name, form.schedule);
  return choices;
}

std::vector<std::string> problems_of(const PipelineShape& s, const PipelineOptionNames& names) {
  std::vector<std::string> problems;
  const auto add = [&problems]<class... Args>(fmt::format_string<Args...> text, Args&&... args) {
    problems.push_back(fmt::format(text, std::forward<Args>(args)...));
  };
  if (s.ranks < 1) add("{} {} must be at least 1", names.ranks, s.ranks);
  if (s.chunks < 1) add("{} {} must be at least 1", names.chunks, s.chunks);
  if (s.microbatches < 1) add("{} {} must be at least 1", names.microbatches, s.microbatches);
  if (s.group < 0) add("{} {} must not be negative", names.group, s.group);
  if (!problems.empty()) return problems;

  const ScheduleForm& form = form_of(s.schedule);
  if (form.chunks > 0 && s.chunks != form.chunks) {
    add("{} {}: {} {} has {} on each rank (several: interleaved)", names.chunks, s.chunks, names.schedule,
        form.name, form.chunks == 1 ? "one chunk" : "two chunks");
  }
  if (form.chunks == 0 && s.ranks == 1) {
    add("{} {} needs {} above 1 (it is 1)", names.schedule, form.name, names.ranks);
  }
  if (form.chunks == 0 && s.chunks == 1) {
    add("{} {} needs {} above 1 (it is 1)", names.schedule, form.name, names.chunks);
  }
  if (s.schedule != PipelineSchedule::kInterleaved) {
    if (s.group != 0) {
      add("{} {} needs {} interleaved (it is {})", names.group, s.group, names.schedule, form.name);
    }
    return problems;
  }
  const int group = s.group > 0 ? s.group : s.ranks;
  if (group < s.ranks) {
    add("{} {} must be at least {} {}: a group must reach the last rank before its next chunk is due",
        names.group, group, names.ranks, s.ranks);
  }
  if (s.forward_only || !problems.empty()) return problems;
  const int rest = s.microbatches % group;
  if (s.microbatches < group || (rest != 0 && rest < s.ranks)) {
    add("{} {} does not suit {} interleaved: in groups of {}, {} would be left for {} {}; use a multiple of "
        "{}, "
        "or {} 1f1b",
        names.microbatches, s.microbatches, names.schedule, group, rest, names.ranks, s.ranks, group,
        names.schedule);
  }
  return problems;
}

bool defers_weight_gradients(const PipelineShape& shape) {
  return shape.gradients_first || form_of(shape.schedule).defers_weight_gradients;
}

int sends_in_flight(const PipelineShape& shape) {
  // Interleaved: a whole group passes a chunk before the next rank may turn to it.
  const int group = shape.group > 0 ? shape.group : shape.ranks;
  return shape.schedule == PipelineSchedule::kInterleaved ? std::max(2, group) : 2;
}

int stage_of(const PipelineShape& shape, int rank, int chunk) {
  if (form_of(shape.schedule).v_shaped && chunk == 1) return 2 * shape.ranks - 1 - rank;
  return chunk * shape.ranks + rank;
}

int rank_of(const PipelineShape& shape, int stage) {
  if (form_of(shape.schedule).v_shaped && stage >= shape.ranks) return 2 * shape.ranks - 1 - stage;
  return stage % shape.ranks;
}

int chunk_of(const PipelineShape& shape, int stage) {
  return stage / shape.ranks;
}

Program compute_order(const PipelineShape& shape, int rank) {
  if (std::vector<std::string> problems = problems_of(shape); !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  WEFT_CHECK(rank >= 0 && rank < shape.ranks, "rank {} of a pipeline of {}", rank, shape.ranks);
  if (shape.forward_only) return forward_only(shape, rank);
  return form_of(shape.schedule).order(shape, rank);
}

Program make_program(const PipelineShape& shape, int rank) {
  const Program order = compute_order(shape, rank);
  Program program;
  std::size_t asked = 0;  // receives of the actions before this one are started
  const auto ask_for_next = [&] {
    for (Action receive{}; asked < order.size();) {
      if (!needs_message(shape, rank, order[asked++], receive)) continue;
      program.push_back(receive);
      return;
    }
  };
  ask_for_next();
  const bool gradients_first = defers_weight_gradients(shape);
  Program held;  // the gradient that goes after the weight gradient of its stage
  for (const Action& action : order) {
    Action message{};
    // Its own receive stands already: this is the one after it.
    if (needs_message(shape, rank, action, message)) ask_for_next();
    program.push_back(action);
    program.insert(program.end(), held.begin(), held.end());
    held.clear();
    if (!makes_message(shape, rank, action, message)) continue;
    const bool hold = action.kind == ActionKind::kBackward && !gradients_first;
    (hold ? held : program).push_back(message);
  }
  return program;
}

std::vector<Program> make_programs(const PipelineShape& shape) {
  std::vector<Program> programs;
  for (int rank = 0; rank < shape.ranks; ++rank) programs.push_back(make_program(shape, rank));
  return programs;
}

}  // namespace weft
