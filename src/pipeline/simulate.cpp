#include "pipeline/simulate.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "core/check.hpp"

namespace weft {
namespace {

// A started message end, in the queue of its rank.
struct Posted {
  const Action* action;
  double time;
};

struct Queue {
  std::deque<Posted> waiting;
  double free = 0;  // when the message before has left it
};

class Simulator {
 public:
  Simulator(const std::vector<Program>& programs, const SimulationInput& input)
      : programs_(programs), input_(input), ranks_(programs.size()) {
    WEFT_CHECK(!input.stages.empty(), "the costs of no stage");
    result_.ranks.resize(programs.size());
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      for (const Action& action : programs[rank]) {
        if (is_compute(action.kind)) owner_.emplace(action.stage, rank);
      }
    }
    const auto stages = owner_.empty() ? 0 : static_cast<std::size_t>(owner_.rbegin()->first) + 1;
    last_stage_ = static_cast<int>(stages) - 1;
    WEFT_CHECK(input.stages.size() == 1 || input.stages.size() >= stages, "the costs of {} stages for {}",
               input.stages.size(), stages);
  }

  // Every rank goes as far as it can, then every message, until nothing moves. The times do not depend on
  // the order in which the ranks are looked at: queues are first in, first out.
  SimulationResult run() {
    for (bool moved = true; moved && result_.faults.empty();) {
      moved = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) moved = advance(rank) || moved;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) moved = deliver(rank) || moved;
    }
    if (result_.faults.empty()) report_who_waits();
    for (const RankResult& rank : result_.ranks) result_.makespan = std::max(result_.makespan, rank.end());
    return std::move(result_);
  }

 private:
  struct Rank {
    std::size_t next = 0;
    double clock = 0;
    std::map<int, Queue> queues;
    std::map<int, int> sends_started;                // by channel
    std::map<int, std::vector<double>> sends_ended;  // by channel, the times
    int in_flight = 0, pending = 0;
    std::int64_t bytes = 0;
  };
  // Data by what made it: (kind of compute, stage, microbatch).
  using Data = std::tuple<ActionKind, int, int>;

  static Data made_by(const Action& action) {
    switch (action.kind) {
      case ActionKind::kSendActivation:
        return {ActionKind::kForward, action.stage, action.microbatch};
      case ActionKind::kSendGradient:
        return {ActionKind::kBackward, action.stage, action.microbatch};
      case ActionKind::kReceiveActivation:
        return {ActionKind::kForward, action.stage - 1, action.microbatch};
      case ActionKind::kReceiveGradient:
        return {ActionKind::kBackward, action.stage + 1, action.microbatch};
      default:
        return {action.kind, action.stage, action.microbatch};
    }
  }
  static std::vector<Data> needs(const Action& action, int last_stage) {
    const int microbatch = action.microbatch;
    std::vector<Data> data;
    if (action.kind == ActionKind::kForward && action.stage > 0) {
      data.emplace_back(ActionKind::kForward, action.stage - 1, microbatch);
    }
    if (action.kind == ActionKind::kBackward) {
      data.emplace_back(ActionKind::kForward, action.stage, microbatch);
      if (action.stage < last_stage) data.emplace_back(ActionKind::kBackward, action.stage + 1, microbatch);
    }
    if (action.kind == ActionKind::kWeightGrad) {
      data.emplace_back(ActionKind::kBackward, action.stage, microbatch);
    }
    if (is_send(action.kind)) data.push_back(made_by(action));
    return data;
  }

  const StageCost& cost_of(const Action& action) const {
    return input_.stages.size() == 1 ? input_.stages.front()
                                     : input_.stages[static_cast<std::size_t>(action.stage)];
  }
  int queue_of(const Action& action) const {
    switch (input_.channels) {
      case Channels::kPerEdge:
        return action.channel;
      case Channels::kPerDirection:
        return is_gradient(action.kind) ? 1 : 0;
      case Channels::kSingle:
        return 0;
    }
    return 0;
  }

  bool advance(std::size_t rank) {
    Rank& state = ranks_[rank];
    const Program& program = programs_[rank];
    const std::size_t before = state.next;
    for (; state.next < program.size(); ++state.next) {
      const Action& action = program[state.next];
      double ready = state.clock;
      bool there = true;
      for (const Data& data : needs(action, last_stage_)) {
        const auto it = here_.find({rank, data});
        there = there && it != here_.end();
        if (there) ready = std::max(ready, it->second);
      }
      if (!there) break;
      if (is_compute(action.kind)) {
        compute(rank, action, ready);
      } else {
        if (is_send(action.kind) && !may_send(state, action.channel)) break;
        state.queues[queue_of(action)].waiting.push_back({&action, state.clock});
      }
    }
    return state.next != before;
  }

  // Whether few enough sends of the channel are unfinished; the rank's clock goes on to when that is so.
  bool may_send(Rank& state, int channel) {
    int& started = state.sends_started[channel];
    const int must_have_ended = input_.sends_in_flight > 0 ? started + 1 - input_.sends_in_flight : 0;
    if (must_have_ended > 0) {
      const std::vector<double>& ended = state.sends_ended[channel];
      if (static_cast<int>(ended.size()) < must_have_ended) return false;
      state.clock = std::max(state.clock, ended[static_cast<std::size_t>(must_have_ended) - 1]);
    }
    ++started;
    return true;
  }

  void compute(std::size_t rank, const Action& action, double begin) {
    Rank& state = ranks_[rank];
    RankResult& result = result_.ranks[rank];
    const StageCost& cost = cost_of(action);
    const double time = action.kind == ActionKind::kForward    ? cost.forward
                        : action.kind == ActionKind::kBackward ? cost.backward
                                                               : cost.weight_grad;
    result.timeline.push_back({state.next, begin, begin + time});
    result.busy += time;
    state.clock = begin + time;
    here_.try_emplace({rank, made_by(action)}, state.clock);

    switch (action.kind) {
      case ActionKind::kForward:
        ++state.in_flight;
        state.bytes += cost.saved_bytes;
        break;
      case ActionKind::kBackward:  // what is pending is made while what was saved is still there
        --state.in_flight;
        ++state.pending;
        state.bytes += cost.pending_bytes;
        result.peak_bytes = std::max(result.peak_bytes, state.bytes);
        state.bytes -= cost.saved_bytes;
        break;
      default:
        --state.pending;
        state.bytes -= cost.pending_bytes;
        break;
    }
    result.peak_live = std::max(result.peak_live, state.in_flight + state.pending);
    result.peak_in_flight = std::max(result.peak_in_flight, state.in_flight);
    result.peak_pending = std::max(result.peak_pending, state.pending);
    result.peak_bytes = std::max(result.peak_bytes, state.bytes);
  }

  // Lets the oldest sends of this rank's queues through whose receives are the oldest of theirs.
  bool deliver(std::size_t rank) {
    bool moved = false;
    for (auto& [key, queue] : ranks_[rank].queues) {
      while (!queue.waiting.empty() && deliver(rank, queue)) moved = true;
    }
    return moved;
  }

  bool deliver(std::size_t rank, Queue& queue) {
    const Posted send = queue.waiting.front();
    if (!is_send(send.action->kind)) return false;
    const auto peer = static_cast<std::size_t>(send.action->peer);
    WEFT_CHECK(send.action->peer >= 0 && peer < ranks_.size() && peer != rank, "rank {}: {}", rank,
               to_string(*send.action));
    Queue& other = ranks_[peer].queues[queue_of(*send.action)];
    if (other.waiting.empty()) return false;
    const Posted receive = other.waiting.front();
    if (!is_receive(receive.action->kind) || receive.action->peer != static_cast<int>(rank)) return false;
    if (made_by(*send.action) != made_by(*receive.action)) {
      result_.faults.push_back(
          fmt::format("rank {} sends {} where rank {} receives {}: messages have no labels", rank,
                      to_string(*send.action), peer, to_string(*receive.action)));
      return false;
    }
    const double end = std::max({send.time, receive.time, queue.free, other.free}) + input_.message;
    queue.free = other.free = end;
    ranks_[rank].sends_ended[send.action->channel].push_back(end);
    here_.try_emplace({peer, made_by(*send.action)}, end);
    queue.waiting.pop_front();
    other.waiting.pop_front();
    return true;
  }

  void report_who_waits() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Rank& state = ranks_[rank];
      if (state.next < programs_[rank].size()) {
        std::string text =
            fmt::format("rank {} stopped before {}:", rank, to_string(programs_[rank][state.next]));
        if (is_send(programs_[rank][state.next].kind)) text += " earlier sends of its channel have not ended";
        for (const Data& data : needs(programs_[rank][state.next], last_stage_)) {
          if (!here_.contains({rank, data})) text += " " + why_missing(rank, data);
        }
        result_.faults.push_back(text);
        continue;
      }
      for (const auto& [key, queue] : state.queues) {
        if (queue.waiting.empty()) continue;
        result_.faults.push_back(
            fmt::format("rank {} ended with {} unfinished", rank, to_string(*queue.waiting.front().action)));
      }
    }
  }

  std::string why_missing(std::size_t rank, const Data& data) const {
    const auto& [kind, stage, microbatch] = data;
    const std::string name = to_string(Action{kind, stage, 0, microbatch});
    const auto owner = owner_.find(stage);
    if (owner == owner_.end()) return fmt::format("nobody runs {}", name);
    if (owner->second == rank) return fmt::format("{} has not run", name);
    for (const auto& [key, queue] : ranks_[rank].queues) {
      for (const Posted& posted : queue.waiting) {
        if (!is_receive(posted.action->kind) || made_by(*posted.action) != data) continue;
        std::string text = fmt::format("it waits for {} from rank {}", name, posted.action->peer);
        if (posted.action != queue.waiting.front().action) {
          return text + fmt::format(", in a queue behind {}", to_string(*queue.waiting.front().action));
        }
        const auto& queues = ranks_[static_cast<std::size_t>(posted.action->peer)].queues;
        const auto peer = queues.find(key);
        if (peer != queues.end() && !peer->second.waiting.empty()) {
          text += fmt::format(", whose queue stands at {}", to_string(*peer->second.waiting.front().action));
        }
        return text;
      }
    }
    return fmt::format("it waits for {}, for which it has started no receive", name);
  }

  const std::vector<Program>& programs_;
  const SimulationInput& input_;
  std::vector<Rank> ranks_;
  std::map<int, std::size_t> owner_;                     // stage -> rank
  std::map<std::pair<std::size_t, Data>, double> here_;  // what a rank has, and since when
  int last_stage_ = -1;
  SimulationResult result_;
};

}  // namespace

double SimulationResult::bubble() const {
  double busiest = 0;
  for (const RankResult& rank : ranks) busiest = std::max(busiest, rank.busy);
  return busiest > 0 ? (makespan - busiest) / busiest : 0;
}

double SimulationResult::device_bubble() const {
  double largest = 0;
  for (const RankResult& rank : ranks) largest = std::max(largest, rank.bubble());
  return largest;
}

SimulationResult simulate(const std::vector<Program>& programs, const SimulationInput& input) {
  return Simulator(programs, input).run();
}

}  // namespace weft
