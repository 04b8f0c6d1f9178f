// SIGTERM and SIGINT ask a run to save and stop at the next step boundary.
#pragma once

namespace weft {

// While it lives, the signals only set a flag; a second one of the same kind ends the process at once. One at
// a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // The signal that has arrived, or 0.
  int received() const;
};

}  // namespace weft
