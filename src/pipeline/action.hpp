// What one rank of a pipeline does in a step, as data: schedules.hpp writes programs, simulate.hpp runs them
// without a model, print.hpp draws them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

enum class ActionKind : std::uint8_t {
  kForward,
  kBackward,    // the input gradient; the weight gradient stays pending
  kWeightGrad,  // the pending weight gradient of one microbatch
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
};

// Stages are numbered along the model, from 0; each belongs to one rank, as one of its chunks. Edge e lies
// between the stages e and e + 1.
//
// Messages are started, not waited for: a receive is waited for by the Forward or Backward that reads it, a
// send when more of its channel are unfinished than may be (see sends_in_flight). A send's stage is the one
// that made the data, a receive's the one that reads it.
struct Action {
  ActionKind kind;
  int stage = 0;
  int chunk = 0;  // the same stage, counted on its rank
  int microbatch = 0;
  int peer = -1;     // messages: the other rank
  int channel = -1;  // messages: see channel_of

  bool operator==(const Action&) const = default;
};

using Program = std::vector<Action>;

inline bool is_compute(ActionKind kind) {
  return kind <= ActionKind::kWeightGrad;
}
inline bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendActivation || kind == ActionKind::kSendGradient;
}
inline bool is_receive(ActionKind kind) {
  return kind == ActionKind::kReceiveActivation || kind == ActionKind::kReceiveGradient;
}
// Whether it makes, moves or needs a gradient between stages.
inline bool is_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kSendGradient ||
         kind == ActionKind::kReceiveGradient;
}

// Every edge has one channel for activations and one for gradients, each with its own two-rank communicator
// and stream: with fewer, sends that wait for their receives can wait for each other in a ring.
inline int channel_of(int edge, bool gradient) {
  return 2 * edge + (gradient ? 1 : 0);
}

// "forward", "send activation": in words.
const char* name_of(ActionKind kind);
// 2F0, 2B0, 2W0: stage, what, microbatch. 2SF0>1, 2SB0>0: sends the activation or gradient that stage 2 made,
// to that rank. 2RF0<1, 2RB0<0: receives what stage 2 needs, from that rank.
std::string to_string(const Action& action);
// Its actions, with a blank between.
std::string to_string(const Program& program);

}  // namespace weft
