// The optimizers over a parameter buffer: first step, decay, the clip coefficient.
#include "optim/optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/elementwise.hpp"
#include "optim/gradient_norm.hpp"
#include "support/rank.hpp"

namespace weft {
namespace {

class OptimizerTest : public ::testing::Test {
 protected:
  OptimizerTest() {
    params_.add("w", {{"w", {3, 4}, -1, 0, 3, 0, {}}}, {.decay = true});
    params_.add("b", {{"b", {5}, -1, 0, 5, 0, {}}}, {});
  }

  ParamBuffer& buffer(DType dtype) {
    buffer_ =
        std::make_unique<ParamBuffer>(rank_.lane(), params_, *self_, ParamBufferOptions{.dtype = dtype});
    ops::fill(rank_.lane(), buffer_->gradients(), 1);
    return *buffer_;
  }

  testing::TestRank rank_;
  std::unique_ptr<Communicator> self_ = self_communicator("dp");
  ParamSet params_;
  std::unique_ptr<ParamBuffer> buffer_;
};

// A step counter that starts at 1 would give 0.744e-3 here.
TEST_F(OptimizerTest, FirstUpdateOfAdamIsTheLearningRate) {
  const auto adam = make_adamw(rank_.lane(), buffer(DType::kF64), {.eps = 0});
  adam->step(rank_.lane(), {.lr = 1e-3});
  for (const auto& param : params_.all()) {
    for (const double w : param->weight().values<double>()) EXPECT_NEAR(w, -1e-3, 1e-15);
  }
  EXPECT_EQ(adam->steps(), 1);
}

TEST_F(OptimizerTest, DecayLeavesBiasesAlone) {
  const ParamBuffer& flat = buffer(DType::kF64);
  ops::fill(rank_.lane(), flat.weights(), 2);
  ops::fill(rank_.lane(), flat.gradients(), 0);
  const auto adam = make_adamw(rank_.lane(), flat, {});
  adam->step(rank_.lane(), {.lr = 0.1, .weight_decay = 0.5});
  for (const double w : params_.find("w")->weight().values<double>()) EXPECT_NEAR(w, 2 * (1 - 0.05), 1e-15);
  for (const double b : params_.find("b")->weight().values<double>()) EXPECT_EQ(b, 2);
}

TEST_F(OptimizerTest, Bf16WeightsFollowAnFp32Master) {
  const ParamBuffer& flat = buffer(DType::kBF16);
  const auto adam = make_adamw(rank_.lane(), flat, {});
  // Updates far below bf16's resolution at 1 add up in the master.
  ops::fill(rank_.lane(), adam->master(), 1);
  adam->publish(rank_.lane());
  for (int i = 0; i < 64; ++i) adam->step(rank_.lane(), {.lr = 1e-4});
  EXPECT_NEAR(adam->master().values<float>()[0], 1 - 64e-4, 1e-4);
  EXPECT_LT(static_cast<float>(params_.find("b")->weight().values<bf16>()[0]), 1.0f);
}

TEST_F(OptimizerTest, NormAndClip) {
  const ParamBuffer& flat = buffer(DType::kF32);
  const GradientNorm squares(rank_.lane(), flat, 1, 0, *self_, *self_);
  const auto norm = [&](double scale) {
    return GradientNorm::norm(squares.sums(rank_.lane()).values<double>(), scale);
  };
  EXPECT_NEAR(norm(1), std::sqrt(17.0),
              1e-12);  // padding counts nowhere
  EXPECT_NEAR(norm(0.5), std::sqrt(17.0) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(clip_coefficient(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_coefficient(0.5, 1), 1);
  EXPECT_EQ(clip_coefficient(100, 0), 1);
}

TEST_F(OptimizerTest, MomentumStartsWithTheFirstGradient) {
  const auto sgd = make_sgd(rank_.lane(), buffer(DType::kF64), {.momentum = 0.9});
  sgd->step(rank_.lane(), {.lr = 0.1});
  EXPECT_NEAR(params_.find("w")->weight().values<double>()[0], -0.1, 1e-15);
  sgd->step(rank_.lane(), {.lr = 0.1});
  EXPECT_NEAR(params_.find("w")->weight().values<double>()[0], -0.1 - 0.19, 1e-15);
}

}  // namespace
}  // namespace weft
