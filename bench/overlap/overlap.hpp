// What the parts of overlap_bench share: three forms of the same run that take turns, and the row they give.
//   hidden = 1 - (T_on - T_none) / (T_off - T_none)
// the part of the time which communication adds to a run without overlap that overlap takes away.
#pragma once

#include <functional>
#include <string>

#include "comm/local/launcher.hpp"

namespace weft::overlap {

enum class Form {
  kNone,  // without the time of the communication in question
  kOff,
  kOn,
};

struct Times {  // seconds
  double none = 0, off = 0, on = 0;
  double hidden() const { return 1 - (on - none) / (off - none); }
};

struct Settings {
  bool quick = false;  // tiny sizes, few rounds: shows that it runs, not how fast
  int rounds = 7;
  int threads = 1;  // of each rank
};

// The link of all parts; the pipelines change its bandwidth. Operations of one group queue on it.
LinkModel link();

// Medians over the rounds. The forms take turns, so that what else the machine does meets all alike.
Times take_turns(int rounds, const std::function<double(Form)>& seconds_of);

struct Row {
  std::string what;
  int ranks = 0;
  Times times;
  double compute = 0, communication = 0;  // seconds of one step: of what can hide, and what is to be hidden
  double bound = 0;                       // of hidden(), by who waits for whom
};
void print_header();
void print(const Row& row);

void measure_mechanism(const Settings& settings);
void measure_data_parallel(const Settings& settings);
void measure_pipeline(const Settings& settings);
void measure_tensor_parallel(const Settings& settings);
void measure_context_parallel(const Settings& settings);

}  // namespace weft::overlap
