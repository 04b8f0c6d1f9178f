// What a test needs to run modules and models: one rank's lane, and models whose weights are drawn for
// testing.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "data_parallel/param_buffer.hpp"
#include "model/gpt_model.hpp"

namespace weft::testing {

// A rank of its own: arena, workers and a lane.
class TestRank {
 public:
  explicit TestRank(std::size_t bytes = std::size_t{1} << 26, int threads = 1)
      : arena_(Arena::host(bytes)), workers_(threads), lane_{*arena_, workers_, {}} {}
  Lane& lane() { return lane_; }

 private:
  std::unique_ptr<Arena> arena_;
  Workers workers_;
  Lane lane_;
};

// Uniform numbers in (−1, 1), a function of (seed, index).
std::vector<double> random_values(std::uint64_t seed, std::int64_t count);
// A tensor of them, of any floating dtype.
Tensor random_tensor(Lane& lane, const Shape& shape, DType dtype, std::uint64_t seed);
std::vector<double> to_doubles(const Tensor& x);

// Tokens and labels of a microbatch [b, s] in the lane's memory; every `ignored`-th label is −100 (0: none).
MicrobatchData random_batch(Lane& lane, std::int64_t b, std::int64_t s, std::int64_t vocabulary,
                            std::uint64_t seed, std::int64_t ignored = 0);

// A model with its parameters on one tensor-parallel rank. Weights are drawn larger than for training, so
// that every part matters; biases and norms too are random.
class TestModel {
 public:
  TestModel(Lane& lane, Communicator& tp, const ModelSpec& spec, DType dtype, std::int64_t positions,
            std::uint64_t seed);

  // Forward and backward of the microbatches with the loss Σ over their tokens; gradients are left in the
  // buffer.
  double run(const std::vector<MicrobatchData>& batches, DrainPoint drain = DrainPoint::kLinear);
  double loss(const MicrobatchData& batch);
  // Full gradients by canonical name: gathered over tp, padding cut off, tied uses added; none of frozen
  // ones.
  std::map<std::string, std::vector<double>> gathered_gradients();

  ParamSet& params() { return params_; }
  const GptModel& model() const { return *model_; }
  ParamBuffer& buffer() { return *buffer_; }

 private:
  Lane& lane_;
  Communicator& tp_;
  std::unique_ptr<Communicator> dp_;
  ParamSet params_;
  std::unique_ptr<GptModel> model_;
  std::unique_ptr<ParamBuffer> buffer_;
};

// The rule by which gradients of two layouts are compared: for each tensor ‖a − b‖ over the larger of ‖b‖ and
// 1e-3 · ‖all of b‖ · √(its elements / all elements), so that a gradient that is zero but for rounding (a key
// bias's) is held to the size of its fellows. Returns the worst tensor's ratio and puts its name in `worst`.
using Gradients = std::map<std::string, std::vector<double>>;
double gradient_difference(const Gradients& a, const Gradients& b, std::string* worst);

}  // namespace weft::testing
