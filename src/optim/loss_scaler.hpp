// The factor that lifts fp16 gradients out of the range where they vanish. An update whose scaled gradients
// are not all finite is skipped; how the scale moves then is Megatron's rule (and torch's, with hysteresis
// 1).
#pragma once

#include <cstdint>
#include <string>

namespace weft {

struct DynamicLossScale {
  double initial = 4294967296.0;  // --initial-loss-scale
  double minimum = 1;             // --min-loss-scale
  std::int64_t window = 1000;     // --loss-scale-window: clean updates in a row before the scale doubles
  // --hysteresis: overflows before the scale is halved, by each from then on; refilled only when the scale
  // doubles.
  std::int64_t hysteresis = 2;
};

class LossScaler {
 public:
  // Never moves.
  static LossScaler constant(double scale);
  static LossScaler dynamic(const DynamicLossScale& options);

  double scale() const { return state_.scale; }
  bool is_dynamic() const { return dynamic_; }
  // To be called once after every attempted update, with whether it was skipped because a scaled gradient was
  // not finite. Returns a warning when the scale can go no lower and updates are skipped all the same (after
  // kSkipsToWarn in a row, then at every doubling of that number), else an empty text.
  static constexpr std::int64_t kSkipsToWarn = 3;
  [[nodiscard]] std::string update(bool overflow);

  // What a checkpoint must hold.
  struct State {
    double scale = 1;
    std::int64_t clean = 0;            // updates since the scale last doubled or an update was skipped
    std::int64_t hysteresis_left = 0;  // overflows that the scale still stands
    std::int64_t floor_skips = 0;      // in a row, with the scale at its minimum
    bool operator==(const State&) const = default;
  };
  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  LossScaler(bool dynamic, const DynamicLossScale& options);
  std::string count_floor_skip();

  bool dynamic_;
  DynamicLossScale options_;
  State state_;
};

}  // namespace weft
