#include "pipeline/executor.hpp"

#include <fmt/core.h>

#include <utility>

#include "core/check.hpp"

namespace weft {
namespace {

TracedOperation traced_as(const Action& action) {
  TracedOperation what = on_row(TraceRow::kSchedule, fmt::format("{} mb {} chunk {}", name_of(action.kind),
                                                                 action.microbatch, action.chunk));
  what.microbatch = action.microbatch;
  what.chunk = action.chunk;
  return what;
}

}  // namespace

Executor::Executor(std::vector<Stage*> chunks, std::vector<Communicator*> channels,
                   const ExecutorOptions& options)
    : chunks_(std::move(chunks)), channels_(std::move(channels)), options_(options) {}

void Executor::run(Lane& lane, const Program& program) {
  for (const Action& action : program) {
    Stage& stage = *chunks_[static_cast<std::size_t>(action.chunk)];
    const int microbatch = action.microbatch;
    if (options_.watch) options_.watch(&action);
    const TraceScope traced(lane.tools, to_string(action).c_str(), [&] { return traced_as(action); });
    switch (action.kind) {
      case ActionKind::kForward: {
        Tensor out = stage.forward(lane, microbatch, take(lane, {action.stage, false, microbatch}));
        if (out.defined()) made_.emplace(Key{action.stage + 1, false, microbatch}, std::move(out));
        break;
      }
      case ActionKind::kBackward: {
        Tensor out = stage.backward(lane, microbatch, take(lane, {action.stage, true, microbatch}));
        if (out.defined()) made_.emplace(Key{action.stage - 1, true, microbatch}, std::move(out));
        break;
      }
      case ActionKind::kWeightGrad:
        stage.weight_grad(lane, microbatch);
        break;
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient:
        send(lane, action);
        break;
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        if (options_.overlap) {
          receive(lane, action);
        } else {
          asked_.emplace(Key{action.stage, is_gradient(action.kind), microbatch}, action);
        }
        break;
    }
  }
  if (options_.watch) options_.watch(nullptr);
  finish(lane, program);
}

void Executor::send(Lane& lane, const Action& action) {
  std::vector<Messages>& unfinished = sent_[action.channel];
  if (static_cast<int>(unfinished.size()) == options_.sends_in_flight) {
    unfinished.front().wait(lane);
    unfinished.erase(unfinished.begin());
  }
  const bool gradient = is_gradient(action.kind);
  const auto made = made_.find({action.stage + (gradient ? -1 : 1), gradient, action.microbatch});
  WEFT_CHECK(made != made_.end(), "{}: nothing to send", to_string(action));
  Communicator& channel = *channels_[static_cast<std::size_t>(action.channel)];
  unfinished.push_back(channel.send_receive(lane, {{1 - channel.rank(), made->second}}, {}));
  made_.erase(made);
}

void Executor::receive(Lane& lane, const Action& action) {
  Communicator& channel = *channels_[static_cast<std::size_t>(action.channel)];
  const Tensor memory = chunks_[static_cast<std::size_t>(action.chunk)]->message(lane);
  arriving_.emplace(Key{action.stage, is_gradient(action.kind), action.microbatch},
                    channel.send_receive(lane, {}, {{1 - channel.rank(), memory}}));
}

Tensor Executor::take(Lane& lane, const Key& key) {
  if (const auto asked = asked_.find(key); asked != asked_.end()) {
    receive(lane, asked->second);
    asked_.erase(asked);
  }
  if (const auto arriving = arriving_.find(key); arriving != arriving_.end()) {
    Messages messages = std::move(arriving->second);
    arriving_.erase(arriving);
    return messages.wait(lane).front();
  }
  if (const auto made = made_.find(key); made != made_.end()) {
    Tensor x = std::move(made->second);
    made_.erase(made);
    return x;
  }
  return {};  // the first stage, or the last one's gradient
}

void Executor::finish(Lane& lane, const Program& program) {
  for (auto& [channel, unfinished] : sent_) {
    for (Messages& messages : unfinished) messages.wait(lane);
  }
  sent_.clear();
  WEFT_CHECK(made_.empty() && arriving_.empty() && asked_.empty(),
             "a program of {} actions left {} results, {} receives and {} requests behind", program.size(),
             made_.size(), arriving_.size(), asked_.size());
}

}  // namespace weft
