// The operations that weft bench op times: of each its name, the shape, and how to set it up on a lane.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/lane.hpp"
#include "model/config.hpp"

namespace weft {

struct OpShapes {
  ModelConfig model;  // resolved
  std::int64_t sequence = 0, batch = 0;
  DType dtype = DType::kF32;
  std::int64_t parameters = 0;  // of what the optimizer visits

  std::int64_t tokens() const { return sequence * batch; }
  std::int64_t head_size() const { return model.kv_channels; }
};

// An operation whose operands have been taken and filled.
struct PreparedOp {
  using Run = std::function<void()>;
  // Most are just what runs. NOLINTNEXTLINE(google-explicit-constructor)
  PreparedOp(Run r) : run(std::move(r)) {}
  PreparedOp(Run r, Run first) : run(std::move(r)), before(std::move(first)) {}
  Run run;             // as often as it is called
  Run before = [] {};  // of what works in place: fills it again; not to be timed
};

struct OpCase {
  std::string op, shape;  // "gemm", "nt qkv 512x768x256"
  std::function<PreparedOp(Lane&)> prepare;
};

std::vector<OpCase> op_cases(const OpShapes& shapes);

// What --op may say: the name of an operation, or words in those of several ("attention" has its backward
// too, "norm" both kinds).
std::vector<std::string> op_names();
bool op_matches(const std::string& op, const std::string& name);

}  // namespace weft
