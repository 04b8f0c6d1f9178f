// Every module's backward against finite differences of its forward, in double.
#include <gtest/gtest.h>

#include <cmath>

#include "nn/attention/core_attention.hpp"
#include "nn/attention/self_attention.hpp"
#include "nn/bias_dropout_add.hpp"
#include "nn/embedding.hpp"
#include "nn/fused_head.hpp"
#include "nn/linear.hpp"
#include "nn/mlp.hpp"
#include "nn/norm.hpp"
#include "nn/overlapped_linear.hpp"
#include "ops/elementwise.hpp"
#include "support/check_module.hpp"
#include "support/rank.hpp"

namespace weft {
namespace {

using testing::check_derivatives;
using testing::Derivative;
using testing::random_batch;
using testing::random_tensor;
using testing::TestRank;

constexpr DType kF64 = DType::kF64;

class ModuleTest : public ::testing::Test {
 protected:
  Lane& lane() { return rank_.lane(); }

  const Param& param(const std::string& name, const Shape& shape, bool frozen = false) {
    Param* p = params_.add(name, {{name, shape, -1, 0, shape[0], 0, {}}},
                           {.decay = shape.rank() > 1, .frozen = frozen});
    const std::uint64_t seed = params_.all().size();
    p->bind(random_tensor(lane(), shape, kF64, seed),
            frozen ? Tensor() : random_tensor(lane(), shape, kF64, 1000 + seed), nullptr);
    return *p;
  }

  Microbatch microbatch() {
    Microbatch mb;
    mb.batch = batch_;
    mb.dropout_key = RandomKey{5};
    return mb;
  }

  // f = Σ r · forward(x); checks dx and every parameter's gradient.
  void check(const Tensor& x, const std::function<Tensor(const Tensor&, Microbatch&)>& forward,
             const std::function<Tensor(const Tensor&, Microbatch&)>& backward) {
    for (const auto& p : params_.all()) p->begin_step(1);
    Microbatch mb = microbatch();
    const Tensor y = forward(x, mb);
    const Tensor r = random_tensor(lane(), y.shape(), kF64, 99);
    const Tensor dx = backward(r, mb);
    mb.later.drain(lane());
    EXPECT_TRUE(mb.saved.empty());
    std::vector<Derivative> derivatives{{"x", x, dx}};
    for (const auto& p : params_.all()) {
      if (p->trains()) derivatives.push_back({p->name(), p->weight(), p->main_grad()});
    }
    check_derivatives(
        [&] {
          Microbatch again = microbatch();
          again.saved = SavedStack(false);
          const std::vector<double> values = testing::to_doubles(forward(x, again));
          double sum = 0;
          for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * r.values<double>()[i];
          return sum;
        },
        derivatives);
  }

  void check_linear(const nn::Linear& linear, const Tensor& x) {
    check(
        x, [&](const Tensor& in, Microbatch& mb) { return linear.forward(lane(), in, mb); },
        [&](const Tensor& dy, Microbatch& mb) { return nn::input_gradient(lane(), linear, dy, mb); });
  }

  TestRank rank_;
  std::unique_ptr<Communicator> self_ = self_communicator("tp");
  nn::ReplicatedBorder border_{*self_};
  ParamSet params_;
  MicrobatchData batch_ = random_batch(rank_.lane(), 2, 5, 11, 3);
};

TEST_F(ModuleTest, ColumnParallelLinear) {
  const nn::ColumnParallelLinear linear(border_, param("w", {7, 6}), &param("b", {7}));
  check_linear(linear, random_tensor(lane(), {5, 2, 6}, kF64, 1));
}

TEST_F(ModuleTest, RowParallelLinear) {
  const nn::RowParallelLinear linear(border_, param("w", {7, 6}));
  check_linear(linear, random_tensor(lane(), {5, 2, 6}, kF64, 1));
}

// A linear whose weight is frozen keeps nothing of its input; where nothing is left to add, nothing is
// deferred: no product runs for it.
TEST_F(ModuleTest, FrozenLinearsKeepAndDeferNothing) {
  const Tensor x = random_tensor(lane(), {5, 2, 6}, kF64, 1);
  const Tensor dy = random_tensor(lane(), {5, 2, 7}, kF64, 2);
  const nn::ChunkedReplicatedBorder chunked(border_, 2);
  const auto use = [&](const nn::Linear& linear, bool keeps, bool defers) {
    for (const auto& p : params_.all()) p->begin_step(p->trains() ? 1 : 0);
    Microbatch mb = microbatch();
    mb.later = WeightGrads(DrainPoint::kSchedule);
    Tensor input = random_tensor(lane(), {5, 2, 6}, kF64, 1);
    const std::size_t before = lane().arena.in_use();
    {
      const Tensor y = linear.forward(lane(), input, mb);
      input = Tensor();
    }
    EXPECT_EQ(lane().arena.in_use() < before, !keeps);
    nn::input_gradient(lane(), linear, dy, mb);
    EXPECT_EQ(mb.later.empty(), !defers);
    mb.later.drain(lane());
    EXPECT_TRUE(mb.saved.empty());
    check_linear(linear, x);
  };
  for (const bool weight : {false, true}) {
    for (const bool bias : {false, true}) {
      params_ = ParamSet();
      use(nn::ColumnParallelLinear(border_, param("w", {7, 6}, weight), &param("b", {7}, bias)), !weight,
          !weight || !bias);
    }
    params_ = ParamSet();
    use(nn::ColumnParallelLinear(border_, param("w", {7, 6}, weight), nullptr), !weight, !weight);
    params_ = ParamSet();
    use(nn::RowParallelLinear(border_, param("w", {7, 6}, weight)), !weight, !weight);
    params_ = ParamSet();
    use(nn::OverlappedRowParallelLinear(chunked, param("w", {7, 6}, weight)), !weight, !weight);
    for (const bool bias : {false, true}) {
      params_ = ParamSet();
      use(nn::OverlappedColumnParallelLinear(chunked, param("w", {7, 6}, weight), &param("b", {7}, bias),
                                             DrainPoint::kSchedule),
          !weight, !weight || !bias);
    }
  }
}

TEST_F(ModuleTest, AFrozenParameterTakesNoGradient) {
  Param frozen("w", {2, 3}, {{"w", {2, 3}, -1, 0, 2, 0, {}}}, {.frozen = true});
  const Tensor weight = random_tensor(lane(), {2, 3}, kF64, 1);
  EXPECT_THROW(frozen.bind(weight, weight, nullptr), Error);
  frozen.bind(weight, Tensor(), nullptr);
  frozen.contribute([](const Tensor&, float) { ADD_FAILURE() << "a gradient is computed"; });
  frozen.ready();
  EXPECT_EQ(frozen.beta(), 0);
}

TEST_F(ModuleTest, RmsNorm) {
  const nn::RmsNorm norm(param("w", {6}), 1e-5);
  const Tensor residual = random_tensor(lane(), {5, 2, 6}, kF64, 8);
  check(
      random_tensor(lane(), {5, 2, 6}, kF64, 1),
      [&](const Tensor& x, Microbatch& mb) { return norm.forward(lane(), x, mb); },
      [&](const Tensor& dy, Microbatch& mb) { return norm.backward(lane(), dy, Tensor(), mb); });
}

TEST_F(ModuleTest, NormAddsTheGradientOfTheResidual) {
  const nn::LayerNorm norm(param("w", {6}), param("b", {6}), 1e-5);
  // f = Σ r · (norm(x) + x): the second use of x reaches backward as dresidual.
  check(
      random_tensor(lane(), {5, 2, 6}, kF64, 1),
      [&](const Tensor& x, Microbatch& mb) {
        Tensor y = norm.forward(lane(), x, mb);
        ops::add_in_place(lane(), y, x);
        return y;
      },
      [&](const Tensor& dy, Microbatch& mb) { return norm.backward(lane(), dy, dy, mb); });
}

TEST_F(ModuleTest, LayerNorm) {
  const nn::LayerNorm norm(param("w", {6}), param("b", {6}), 1e-5);
  check(
      random_tensor(lane(), {5, 2, 6}, kF64, 1),
      [&](const Tensor& x, Microbatch& mb) { return norm.forward(lane(), x, mb); },
      [&](const Tensor& dy, Microbatch& mb) { return norm.backward(lane(), dy, Tensor(), mb); });
}

TEST_F(ModuleTest, BiasDropoutAdd) {
  for (const double p : {0.0, 0.3}) {
    const nn::BiasDropoutAdd add(border_, &param("b", {6}), p, nn::dropout_site(0, "mlp"));
    const Tensor residual = random_tensor(lane(), {5, 2, 6}, kF64, 8);
    check(
        random_tensor(lane(), {5, 2, 6}, kF64, 1),
        [&](const Tensor& x, Microbatch& mb) { return add.forward(lane(), x, residual, mb); },
        [&](const Tensor& dy, Microbatch& mb) { return add.backward(lane(), dy, mb); });
  }
}

TEST_F(ModuleTest, FeedForward) {
  for (const bool gated : {false, true}) {
    params_ = ParamSet();
    std::unique_ptr<nn::ActivationLayer> activation;
    if (gated) {
      activation = std::make_unique<nn::GatedActivation>(ops::Activation::kSilu);
    } else {
      activation = std::make_unique<nn::PlainActivation>(ops::Activation::kGeluTanh);
    }
    const std::int64_t width = gated ? 16 : 8;
    const nn::Mlp mlp(
        std::make_unique<nn::ColumnParallelLinear>(border_, param("fc1", {width, 6}), &param("b", {width})),
        std::move(activation), std::make_unique<nn::RowParallelLinear>(border_, param("fc2", {6, 8})));
    check(
        random_tensor(lane(), {5, 2, 6}, kF64, 1),
        [&](const Tensor& x, Microbatch& mb) { return mlp.forward(lane(), x, mb); },
        [&](const Tensor& dy, Microbatch& mb) { return mlp.backward(lane(), dy, mb); });
  }
}

TEST_F(ModuleTest, FeedForwardThatMakesItsActivationAgain) {
  for (const bool gated : {false, true}) {
    params_ = ParamSet();
    const ops::Activation kind = gated ? ops::Activation::kSilu : ops::Activation::kGeluTanh;
    const std::int64_t width = gated ? 16 : 8;
    const Param& bias = param("b", {width});
    const nn::ActivationAgainMlp mlp(
        std::make_unique<nn::ColumnParallelLinear>(border_, param("fc1", {width, 6}), &bias, gated),
        gated ? nullptr : &bias, kind, gated,
        std::make_unique<nn::RowParallelLinear>(border_, param("fc2", {6, 8})));
    check(
        random_tensor(lane(), {5, 2, 6}, kF64, 1),
        [&](const Tensor& x, Microbatch& mb) { return mlp.forward(lane(), x, mb); },
        [&](const Tensor& dy, Microbatch& mb) { return mlp.backward(lane(), dy, mb); });
  }
}

TEST_F(ModuleTest, SelfAttention) {
  for (const double dropout : {0.0, 0.25}) {
    for (const bool rotary : {false, true}) {
      params_ = ParamSet();
      const std::int64_t heads = 4, groups = 2, d = 4;
      ops::RopeTable table{random_tensor(lane(), {5, 2}, kF64, 31), random_tensor(lane(), {5, 2}, kF64, 32),
                           false};
      for (std::int64_t i = 0; i < 10; ++i) {  // a rotation: cos² + sin² = 1
        const double angle = 3 * table.cos.data<double>()[i];
        table.cos.data<double>()[i] = std::cos(angle);
        table.sin.data<double>()[i] = std::sin(angle);
      }
      std::unique_ptr<nn::PositionRotation> rotation;
      if (rotary) {
        rotation = std::make_unique<nn::RotaryRotation>(table, static_cast<int>(d));
      } else {
        rotation = std::make_unique<nn::NoRotation>();
      }
      std::unique_ptr<nn::HeadNorms> norms = std::make_unique<nn::NoHeadNorms>();
      if (rotary) {  // one of each kind
        norms = std::make_unique<nn::QueryKeyNorms>(
            d, std::make_unique<nn::RmsNorm>(param("q norm", {d}), 1e-5),
            std::make_unique<nn::LayerNorm>(param("k norm", {d}), param("k norm bias", {d}), 1e-5));
      }
      const nn::CoreAttentionShape shape{
          .head_dim = static_cast<int>(d), .scale = 0.5, .dropout = dropout, .site = 9};
      const nn::SelfAttention attention(
          {heads, groups, d},
          std::make_unique<nn::ColumnParallelLinear>(border_, param("qkv", {(heads + 2 * groups) * d, 6}),
                                                     nullptr),
          std::move(norms), std::move(rotation), std::make_unique<nn::CausalAttention>(shape),
          std::make_unique<nn::RowParallelLinear>(border_, param("proj", {6, heads * d})));
      check(
          random_tensor(lane(), {5, 2, 6}, kF64, 1),
          [&](const Tensor& x, Microbatch& mb) { return attention.forward(lane(), x, mb); },
          [&](const Tensor& dy, Microbatch& mb) { return attention.backward(lane(), dy, mb); });
    }
  }
}

TEST_F(ModuleTest, Embedding) {
  const nn::Embedding embedding(border_, param("words", {11, 6}), 0,
                                std::make_unique<nn::PositionsByPlace>(border_, param("positions", {5, 6})),
                                0.2, nn::dropout_site(-1, "embedding"));
  const Tensor unused = random_tensor(lane(), {1}, kF64, 1);
  const Tensor zero = lane().alloc(kF64, {1}, "test");
  zero.data<double>()[0] = 0;
  check(
      unused, [&](const Tensor&, Microbatch& mb) { return embedding.forward(lane(), mb); },
      [&](const Tensor& dy, Microbatch& mb) {
        embedding.backward(lane(), dy, mb);
        return zero;
      });
}

TEST_F(ModuleTest, HeadAndLoss) {
  batch_ = random_batch(lane(), 2, 5, 11, 3, 4);
  const nn::LanguageModelHead whole(border_, param("w", {13, 6}),
                                    {.vocabulary = 11, .label_smoothing = 0.1, .z_loss = 1e-2});
  // Pieces of 1, 2 (the last is shorter) and all 5 positions of the two samples.
  const nn::FusedHead one(whole, 1), two(whole, 5), all(whole, 1000);
  const Tensor x = random_tensor(lane(), {5, 2, 6}, kF64, 1);
  for (const nn::OutputHead* head : std::initializer_list<const nn::OutputHead*>{&whole, &one, &two, &all}) {
    for (const auto& p : params_.all()) p->begin_step(1);
    Microbatch mb = microbatch();
    mb.loss_scale = 3;
    head->forward(lane(), x, mb);
    const std::vector<double> losses = testing::to_doubles(mb.losses);
    const Tensor dx = head->backward(lane(), mb).wait(lane());
    mb.later.drain(lane());
    EXPECT_TRUE(mb.saved.empty());
    check_derivatives(
        [&] {
          Microbatch again = microbatch();
          again.saved = SavedStack(false);
          head->forward(lane(), x, again);  // adds to no gradient
          double sum = 0;
          for (const double loss : testing::to_doubles(again.losses)) sum += 3 * loss;
          return sum;
        },
        {{"x", x, dx}, {"w", params_.all()[0]->weight(), params_.all()[0]->main_grad()}});
    Microbatch again = microbatch();
    again.saved = SavedStack(false);
    head->forward(lane(), x, again);
    EXPECT_EQ(testing::to_doubles(again.losses), losses);
    // A second microbatch adds to the gradient of the first.
    const std::vector<double> once = testing::to_doubles(params_.all()[0]->main_grad());
    for (const auto& p : params_.all()) p->begin_step(2);
    for (int i = 0; i < 2; ++i) {
      Microbatch more = microbatch();
      more.loss_scale = 3;
      head->forward(lane(), x, more);
      head->backward(lane(), more).wait(lane());
      more.later.drain(lane());
    }
    const std::vector<double> twice = testing::to_doubles(params_.all()[0]->main_grad());
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-12) << i;
  }
}

TEST_F(ModuleTest, SavedActivationsAreTyped) {
  SavedStack stack;
  stack.push(std::string("x"));
  EXPECT_THROW(stack.pop<int>(), Error);
  EXPECT_EQ(stack.pop<std::string>(), "x");
  EXPECT_THROW(stack.pop<std::string>(), Error);
}

}  // namespace
}  // namespace weft
