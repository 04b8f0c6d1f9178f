// The stages that the engine gives to the executor: a chunk of the model, and what is done with it.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "model/gpt_model.hpp"
#include "pipeline/stage.hpp"

namespace weft {

// Messages between stages: activations and gradients [s, b, h] (under sequence parallel [s/tp, b, h]).
struct MessageShape {
  DType dtype;
  Shape shape;
};

// Forward and backward, with the microbatches that are in flight.
class TrainingStage final : public Stage {
 public:
  struct Hooks {
    std::function<Microbatch(int)> make;
    std::function<void(int, const Microbatch&)> forwarded;  // after the forward pass
    // Where there is one stage: takes both passes of a microbatch, if it wants them, and runs them its way
    // (see StepRecordings). Otherwise it does nothing and says so.
    std::function<bool(int, const Microbatch&, const std::function<void()>& pass)> together;
  };
  TrainingStage(const GptModel& model, MessageShape message, int microbatches, Hooks hooks)
      : model_(model),
        message_(message),
        hooks_(std::move(hooks)),
        live_(static_cast<std::size_t>(microbatches)) {}

  Tensor forward(Lane& lane, int microbatch, const Tensor& received) override {
    std::optional<Microbatch>& mb = live_[static_cast<std::size_t>(microbatch)];
    mb = hooks_.make(microbatch);
    const auto forward = [&] {
      Tensor sent = model_.forward(lane, received, *mb);
      hooks_.forwarded(microbatch, *mb);
      return sent;
    };
    const auto pass = [&] {
      forward();
      model_.backward(lane, {}, *mb);
      finish(lane, *mb);
    };
    if (!hooks_.together || !hooks_.together(microbatch, *mb, pass)) return forward();
    mb.reset();
    return {};
  }
  Tensor backward(Lane& lane, int microbatch, const Tensor& received) override {
    std::optional<Microbatch>& mb = live_[static_cast<std::size_t>(microbatch)];
    return mb ? model_.backward(lane, received, *mb) : Tensor();
  }
  void weight_grad(Lane& lane, int microbatch) override {
    std::optional<Microbatch>& mb = live_[static_cast<std::size_t>(microbatch)];
    if (!mb) return;
    finish(lane, *mb);
    mb.reset();
  }
  Tensor message(Lane& lane) const override {
    return lane.alloc(message_.dtype, message_.shape, "stage message");
  }

 private:
  static void finish(Lane& lane, Microbatch& mb) {
    mb.later.drain(lane);
    WEFT_CHECK(mb.saved.empty(), "activations are left after the backward pass");
  }

  const GptModel& model_;
  MessageShape message_;
  Hooks hooks_;
  std::vector<std::optional<Microbatch>> live_;
};

// Forward only: evaluation, logits, the search for a NaN.
class ForwardStage final : public Stage {
 public:
  using Body = std::function<Tensor(int microbatch, const Tensor& received)>;
  ForwardStage(MessageShape message, Body body) : message_(message), body_(std::move(body)) {}

  Tensor forward(Lane&, int microbatch, const Tensor& received) override {
    return body_(microbatch, received);
  }
  Tensor backward(Lane&, int, const Tensor&) override { fail("a forward-only stage has no backward pass"); }
  void weight_grad(Lane&, int) override { fail("a forward-only stage has no weight gradients"); }
  Tensor message(Lane& lane) const override {
    return lane.alloc(message_.dtype, message_.shape, "stage message");
  }

 private:
  MessageShape message_;
  Body body_;
};

}  // namespace weft
