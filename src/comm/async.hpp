// Async<T>: the result of a collective that has been started. The only way to the value is wait(); it is
// waited for exactly once. Destroyed unwaited while no exception is in flight, it is a checked error that
// stops the run (all ranks); during unwinding it is cancelled.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "core/lane.hpp"

namespace weft {

// One started operation, as its backend sees it. Holds the tensors it reads and writes until it is done.
class Operation {
 public:
  virtual ~Operation() = default;
  // Makes lane.compute wait until the result may be read and the inputs may be written again (on the CPU:
  // blocks). Throws Aborted when another rank failed, Error on a timeout or a call that differs between
  // ranks.
  virtual void wait(Lane& lane) = 0;
  // The result will not be used: an exception is in flight.
  virtual void cancel() noexcept = 0;
  // Dropped without wait(): reports the fault and stops the run.
  virtual void dropped() noexcept = 0;
  // For the timeline: "tp all_reduce".
  virtual std::string name() const { return "collective"; }
};

template <class T>
class [[nodiscard]] Async {
 public:
  Async() = default;
  // Already done.
  explicit Async(T value) : value_(std::move(value)), live_(true) {}
  Async(T value, std::unique_ptr<Operation> operation)
      : value_(std::move(value)), operation_(std::move(operation)), live_(true) {}
  Async(Async&& other) noexcept
      : value_(std::move(other.value_)),
        operation_(std::move(other.operation_)),
        live_(std::exchange(other.live_, false)),
        exceptions_(other.exceptions_) {}
  Async& operator=(Async&& other) noexcept {
    Async old(std::move(*this));  // an unwaited one is caught by its destructor
    value_ = std::move(other.value_);
    operation_ = std::move(other.operation_);
    live_ = std::exchange(other.live_, false);
    exceptions_ = other.exceptions_;
    return *this;
  }
  ~Async() {
    if (!live_ || !operation_) return;
    if (std::uncaught_exceptions() > exceptions_) {
      operation_->cancel();
    } else {
      operation_->dropped();
    }
  }

  bool live() const { return live_; }

  T wait(Lane& lane) {
    WEFT_CHECK(live_, "a collective's result was waited for twice, or never started");
    live_ = false;
    if (operation_) {
      const std::unique_ptr<Operation> done = std::move(operation_);
      const TraceScope traced(lane.tools, "wait", [&] { return on_row(TraceRow::kWaits, done->name()); });
      done->wait(lane);
    }
    return std::move(value_);
  }

 private:
  T value_{};
  std::unique_ptr<Operation> operation_;
  bool live_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace weft
