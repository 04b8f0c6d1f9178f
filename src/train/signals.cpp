#include "train/signals.hpp"

#include <csignal>

namespace weft {
namespace {

// A signal handler can reach nothing but static memory: the one such variable in the program.
volatile std::sig_atomic_t stop_signal = 0;

extern "C" void note_signal(int signal) {
  if (stop_signal != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  stop_signal = signal;
}

}  // namespace

StopSignals::StopSignals() {
  stop_signal = 0;
  std::signal(SIGTERM, note_signal);
  std::signal(SIGINT, note_signal);
}

StopSignals::~StopSignals() {
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
}

int StopSignals::received() const {
  return stop_signal;
}

}  // namespace weft
