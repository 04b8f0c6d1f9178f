#include "pipeline/faults.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace weft::test {
namespace {

// Reads the program of one rank and says what is wrong with it by itself.
class ProgramReader {
 public:
  ProgramReader(const PipelineShape& shape, int rank, std::vector<std::string>& faults)
      : shape_(shape),
        rank_(rank),
        faults_(faults),
        count_(static_cast<std::size_t>(shape.chunks) * static_cast<std::size_t>(shape.microbatches)),
        last_(static_cast<std::size_t>(shape.chunks)) {
    for (auto& last : last_) last.fill(-1);
  }

  void read(const Program& program) {
    for (const Action& action : program) {
      if (!known(action)) continue;
      int& times = count_of(action)[static_cast<std::size_t>(action.kind)];
      if (++times > 1) add(action, "for a second time");
      if (is_compute(action.kind)) in_microbatch_order(action);
      after_what_it_needs(action);
    }
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      for (int microbatch = 0; microbatch < shape_.microbatches; ++microbatch) complete(chunk, microbatch);
    }
  }

 private:
  using Count = std::array<int, 7>;

  void add(const Action& action, const std::string& what) {
    faults_.push_back(fmt::format("rank {}: {} {}", rank_, to_string(action), what));
  }
  Count& count_of(const Action& action) {
    return count_[static_cast<std::size_t>(action.chunk) * static_cast<std::size_t>(shape_.microbatches) +
                  static_cast<std::size_t>(action.microbatch)];
  }
  int times(const Action& action, ActionKind kind) {
    return count_of(action)[static_cast<std::size_t>(kind)];
  }
  // The stage that its data comes from or goes to.
  int other_stage(const Action& action) const {
    return action.stage + (is_gradient(action.kind) != is_send(action.kind) ? 1 : -1);
  }

  bool known(const Action& action) {
    const bool here = action.chunk >= 0 && action.chunk < shape_.chunks && action.microbatch >= 0 &&
                      action.microbatch < shape_.microbatches &&
                      stage_of(shape_, rank_, action.chunk) == action.stage;
    if (!here) {
      add(action, fmt::format("(chunk {}) is no action of this rank", action.chunk));
      return false;
    }
    if (is_compute(action.kind)) return true;
    const int other = other_stage(action);
    const bool exists = other >= 0 && other < shape_.stages();
    if (!exists || rank_of(shape_, other) != action.peer || action.peer == rank_ ||
        action.channel != channel_of(std::min(other, action.stage), is_gradient(action.kind))) {
      add(action, fmt::format("on channel {}: no such message", action.channel));
      return false;
    }
    return true;
  }

  void in_microbatch_order(const Action& action) {
    int& last = last_[static_cast<std::size_t>(action.chunk)][static_cast<std::size_t>(action.kind)];
    if (action.microbatch < last) add(action, fmt::format("after microbatch {}", last));
    last = action.microbatch;
  }

  void after_what_it_needs(const Action& action) {
    const auto needs = [&](ActionKind kind, const char* what) {
      if (times(action, kind) == 0) add(action, what);
    };
    const int other = other_stage(action);
    const bool inner = other >= 0 && other < shape_.stages();
    const bool message = inner && rank_of(shape_, other) != rank_;
    if (inner && !message && is_compute(action.kind) && action.kind != ActionKind::kWeightGrad) {
      const Action source{action.kind, other, chunk_of(shape_, other), action.microbatch};
      if (times(source, source.kind) == 0) add(action, fmt::format("before {}", to_string(source)));
    }
    switch (action.kind) {
      case ActionKind::kForward:
        if (message) needs(ActionKind::kReceiveActivation, "before its activation is asked for");
        break;
      case ActionKind::kBackward:
        needs(ActionKind::kForward, "before its forward");
        if (message) needs(ActionKind::kReceiveGradient, "before its gradient is asked for");
        break;
      case ActionKind::kWeightGrad:
        needs(ActionKind::kBackward, "before its backward");
        break;
      case ActionKind::kSendActivation:
        needs(ActionKind::kForward, "before it is made");
        break;
      case ActionKind::kSendGradient:
        needs(ActionKind::kBackward, "before it is made");
        break;
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        break;
    }
  }

  void complete(int chunk, int microbatch) {
    const int stage = stage_of(shape_, rank_, chunk);
    const auto once = [&](ActionKind kind) {
      const Action action{kind, stage, chunk, microbatch};
      if (times(action, kind) == 0) add(action, "is missing");
    };
    const auto message = [&](ActionKind kind) {
      Action action{kind, stage, chunk, microbatch};
      const int other = other_stage(action);
      if (other < 0 || other >= shape_.stages()) return;
      action.peer = rank_of(shape_, other);
      if (action.peer != rank_ && times(action, kind) == 0) add(action, "is missing");
    };
    once(ActionKind::kForward);
    message(ActionKind::kSendActivation);
    message(ActionKind::kReceiveActivation);
    if (shape_.forward_only) return;
    once(ActionKind::kBackward);
    once(ActionKind::kWeightGrad);
    message(ActionKind::kSendGradient);
    message(ActionKind::kReceiveGradient);
  }

  const PipelineShape& shape_;
  int rank_;
  std::vector<std::string>& faults_;
  std::vector<Count> count_;              // [chunk, microbatch]: how often each kind
  std::vector<std::array<int, 3>> last_;  // [chunk]: the last microbatch of F, B, W
};

}  // namespace

std::vector<std::string> faults_of(const PipelineShape& shape, const std::vector<Program>& programs) {
  std::vector<std::string> faults;
  if (programs.size() != static_cast<std::size_t>(shape.ranks)) {
    faults.push_back(fmt::format("{} programs for {} ranks", programs.size(), shape.ranks));
    return faults;
  }
  for (int rank = 0; rank < shape.ranks; ++rank) {
    ProgramReader(shape, rank, faults).read(programs[static_cast<std::size_t>(rank)]);
  }
  return faults;
}

}  // namespace weft::test
