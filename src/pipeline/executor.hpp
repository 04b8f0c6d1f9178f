// Executor: runs a program (schedules.hpp) on the stages of a rank.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "comm/communicator.hpp"
#include "pipeline/action.hpp"
#include "pipeline/stage.hpp"

namespace weft {

struct ExecutorOptions {
  // Receives are started where the program says, so that a message travels while the rank computes. False:
  // only when its data is needed (for measuring; same bits).
  bool overlap = true;
  int sends_in_flight = 2;  // of a channel, at most (see schedules.hpp)
  // Called before each action, and with null behind the last one, before messages are waited for: a plan's
  // clock needs the action itself, of which a timeline (TraceScope) has the text alone.
  std::function<void(const Action*)> watch;
};

class Executor {
 public:
  // `chunks`: by Action::chunk. `channels`: by Action::channel, communicators of two ranks each, in the order
  // of their stages' ranks in the pipeline; null where this rank is at neither end. All outlive the executor.
  Executor(std::vector<Stage*> chunks, std::vector<Communicator*> channels, const ExecutorOptions& options);

  // Returns when every action has run and every message has ended. What a stage makes for another one of the
  // same rank is handed over without a message.
  void run(Lane& lane, const Program& program);

 private:
  using Messages = Async<std::vector<Tensor>>;
  // What waits here, by the stage that reads it, whether it is a gradient, and the microbatch.
  struct Key {
    int stage;
    bool gradient;
    int microbatch;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm of clang 14
  };

  void send(Lane& lane, const Action& action);
  void receive(Lane& lane, const Action& action);
  Tensor take(Lane& lane, const Key& key);
  void finish(Lane& lane, const Program& program);

  std::vector<Stage*> chunks_;
  std::vector<Communicator*> channels_;
  ExecutorOptions options_;
  std::map<Key, Tensor> made_;                 // for another stage, of this rank or not yet sent
  std::map<Key, Messages> arriving_;           // started receives
  std::map<Key, Action> asked_;                // receives that start when they are needed
  std::map<int, std::vector<Messages>> sent_;  // by channel, the unfinished ones, oldest first
};

}  // namespace weft
