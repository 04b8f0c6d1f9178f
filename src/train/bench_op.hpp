// weft bench op: operations, timed against their floors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/ceilings.hpp"
#include "train/config.hpp"
#include "train/rates.hpp"

namespace weft {

struct BenchOpOptions {
  std::vector<std::string> ops;  // see op_names(); empty: all
  std::int64_t rounds = 7;       // the median of so many
  std::int64_t tokens = 0;       // in place of micro batch size x sequence length; 0: those
  double parameters = 0;         // of the optimizer's flat memory; 0: the model's
  bool batch_given = false;      // the config's micro batch size was said, even if it is the default
};

struct OpTime {
  std::string op, shape;
  double ms = 0, floor_ms = 0;
  double bytes = 0, flops = 0;
  std::vector<OperationCost> costs;  // of the operations that it consists of
};

struct BenchOpResult {
  DeviceKind kind = DeviceKind::kCpu;
  DType dtype = DType::kF32;
  std::string device;
  int threads = 0;
  std::int64_t head_size = 0;
  Ceilings ceilings;
  double per_operation_ms = 0;  // of an operation of nothing
  std::vector<OpTime> times;
};

// The shapes are those of the config's model and microbatch; where it names no model, those of a small GPT,
// or on a GPU of GPT-2 124M at 64 x 1024. ConfigError: names, numbers that do not fit, a device that is not
// there, too little memory.
BenchOpResult run_bench_op(TrainConfig config, const BenchOpOptions& options);

std::string to_string(const BenchOpResult& result);
// By family, what the operations reach of their floors together.
Rates rates_of(const BenchOpResult& result);

}  // namespace weft
