// Modules cut over tensor-parallel ranks against the same modules on one rank: outputs, input gradients and
// every gathered weight gradient, for the plain and the overlapped linears, with and without sequence
// parallel; and that a collective that is left out, or that sums over the wrong ranks, does not go unseen.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <ostream>

#include "comm/local/launcher.hpp"
#include "nn/attention/core_attention.hpp"
#include "nn/attention/self_attention.hpp"
#include "nn/bias_dropout_add.hpp"
#include "nn/embedding.hpp"
#include "nn/head.hpp"
#include "nn/mlp.hpp"
#include "nn/norm.hpp"
#include "nn/tensor_parallel_ranks.hpp"
#include "nn/whole_linear.hpp"
#include "ops/elementwise.hpp"
#include "ops/gemm.hpp"

namespace weft {
namespace {

using testing::Cut;
using testing::Form;
using testing::Gradients;
using testing::PassingCommunicator;
using testing::ShardedRank;
using testing::TestRank;

// Sizes: s is a multiple of tp only where it is cut.
constexpr std::int64_t kB = 3, kH = 7, kVocabulary = 11;
std::int64_t sequence(const ShardedRank& r) {
  return 5 * r.form().unit + (r.form().sequence_parallel ? 0 : 1);
}
Shape hidden(const ShardedRank& r) {
  return {sequence(r), kB, kH};
}

// What is compared with one rank: y and dx, and the gradients of all parameters.
struct Results {
  Gradients outputs, gradients;
};

// Forward and backward of a module [s, b, ...] -> [s, b, ...], with random input and dy.
template <class Forward, class Backward>
Results run(ShardedRank& r, const Shape& in, Cut in_cut, const Shape& out, Cut out_cut, Forward forward,
            Backward backward) {
  Microbatch& mb = r.begin();
  Results results;
  const Tensor y = forward(r.part(in, in_cut, 1), mb);
  results.outputs["y"] = r.join(y, out, out_cut);
  const Tensor dx = backward(r.part(out, out_cut, 2), mb);
  results.outputs["dx"] = r.join(dx, in, in_cut);
  results.gradients = r.gradients();
  return results;
}

Results run_linear(ShardedRank& r, const nn::Linear& linear, const Shape& in, Cut in_cut, const Shape& out,
                   Cut out_cut) {
  return run(
      r, in, in_cut, out, out_cut,
      [&](const Tensor& x, Microbatch& mb) { return linear.forward(r.lane(), x, mb); },
      [&](const Tensor& dy, Microbatch& mb) { return nn::input_gradient(r.lane(), linear, dy, mb); });
}

Results run_sublayer(ShardedRank& r, const nn::Sublayer& sublayer) {
  return run(
      r, hidden(r), r.outside(), hidden(r), r.outside(),
      [&](const Tensor& x, Microbatch& mb) { return sublayer.forward(r.lane(), x, mb); },
      [&](const Tensor& dy, Microbatch& mb) { return sublayer.backward(r.lane(), dy, mb); });
}

Results column(ShardedRank& r) {
  const std::int64_t out = 5 * r.form().unit;
  return run_linear(r, *r.column({{"w", out}}, kH, true), hidden(r), r.outside(), {sequence(r), kB, out},
                    Cut::kColumns);
}

Results row(ShardedRank& r) {
  const std::int64_t in = 5 * r.form().unit;
  return run_linear(r, *r.row("w", kH, in), {sequence(r), kB, in}, Cut::kColumns, hidden(r), r.outside());
}

// The bias of a row-parallel linear, added by what follows it: once, and its gradient is that of one rank.
Results row_with_bias(ShardedRank& r) {
  const std::int64_t in = 5 * r.form().unit;
  const auto linear = r.row("w", kH, in);
  const nn::BiasDropoutAdd add(r.border(), &r.vector("bias", kH), 0, nn::dropout_site(0, "mlp"));
  const Tensor residual = r.part(hidden(r), r.outside(), 8);
  return run(
      r, {sequence(r), kB, in}, Cut::kColumns, hidden(r), r.outside(),
      [&](const Tensor& x, Microbatch& mb) {
        return add.forward(r.lane(), linear->forward(r.lane(), x, mb), residual, mb);
      },
      [&](const Tensor& dy, Microbatch& mb) {
        return nn::input_gradient(r.lane(), *linear, add.backward(r.lane(), dy, mb), mb);
      });
}

// The fault of adding the bias on every rank, before the sum.
class BiasBeforeSum final : public nn::Linear {
 public:
  BiasBeforeSum(const nn::TensorParallelBorder& border, const Param& weight, const Param& bias)
      : border_(border), weight_(weight), bias_(bias), linear_(border, weight) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override {
    linear_.forward(lane, x, mb);
    return border_.combine(lane, ops::gemm_nt(lane, x, weight_.weight(), bias_.weight())).wait(lane);
  }
  Async<Tensor> backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override {
    ops::bias_gradient(lane, dy, bias_.main_grad(), 0);
    return linear_.backward(lane, dy, mb);
  }

 private:
  const nn::TensorParallelBorder& border_;
  const Param &weight_, &bias_;
  nn::RowParallelLinear linear_;
};
Results row_with_bias_before_the_sum(ShardedRank& r) {
  const std::int64_t in = 5 * r.form().unit;
  r.row("w", kH, in);
  const BiasBeforeSum linear(r.border(), *r.params().find("w"), r.vector("bias", kH));
  return run_linear(r, linear, {sequence(r), kB, in}, Cut::kColumns, hidden(r), r.outside());
}

Results column_gathered(ShardedRank& r) {
  const std::int64_t out = 5 * r.form().unit;
  const nn::GatheredOutputLinear linear(r.tp(), r.column({{"w", out}}, kH, true));
  return run_linear(r, linear, hidden(r), r.outside(), {sequence(r), kB, out}, Cut::kWhole);
}

Results row_scattered(ShardedRank& r) {
  const std::int64_t in = 5 * r.form().unit;
  const nn::ScatteredInputLinear linear(r.tp(), r.row("w", kH, in));
  return run_linear(r, linear, {sequence(r), kB, in}, Cut::kWhole, hidden(r), r.outside());
}

Results mlp(ShardedRank& r) {
  const std::int64_t width = 3 * r.form().unit;
  auto fc1 = r.column({{"gate", width}, {"up", width}}, kH, true);
  auto activation = std::make_unique<nn::GatedActivation>(ops::Activation::kSilu);
  return run_sublayer(r, nn::Mlp(std::move(fc1), std::move(activation), r.row("fc2", kH, width)));
}

Results attention(ShardedRank& r) {
  const std::int64_t groups = r.form().unit, heads = 2 * groups, d = 5, tp = r.tp().size();
  auto qkv = r.column({{"q", heads * d}, {"k", groups * d}, {"v", groups * d}}, kH, true);
  const nn::CoreAttentionShape shape{.head_dim = static_cast<int>(d), .scale = 0.5};
  return run_sublayer(
      r, nn::SelfAttention({heads / tp, groups / tp, d}, std::move(qkv), std::make_unique<nn::NoHeadNorms>(),
                           std::make_unique<nn::NoRotation>(), std::make_unique<nn::CausalAttention>(shape),
                           r.row("proj", kH, heads * d)));
}

Results embedding(ShardedRank& r) {
  r.set_batch(testing::random_batch(r.lane(), kB, sequence(r), kVocabulary, 3));
  const Param& words = r.param("words", {{"words", kVocabulary}}, kH, 0);
  // Positions within a cut sequence are the embedding's to offset: without them here.
  std::unique_ptr<nn::LearnedPositions> positions = std::make_unique<nn::NoLearnedPositions>();
  if (!r.form().sequence_parallel) {
    positions =
        std::make_unique<nn::PositionsByPlace>(r.border(), r.param("positions", {{"positions", 40}}, kH, -1));
  }
  const nn::Embedding embed(r.border(), words, words.parts()[0].begin, std::move(positions), 0,
                            nn::dropout_site(-1, "embedding"));
  return run(
      r, {1}, Cut::kWhole, hidden(r), r.outside(),
      [&](const Tensor&, Microbatch& mb) { return embed.forward(r.lane(), mb); },
      [&](const Tensor& dy, Microbatch& mb) {
        embed.backward(r.lane(), dy, mb);
        return r.part({1}, Cut::kWhole, 1);
      });
}

Results head(ShardedRank& r) {
  r.set_batch(testing::random_batch(r.lane(), kB, sequence(r), kVocabulary, 3, 4));
  const Param& w = r.param("w", {{"w", kVocabulary}}, kH, 0);
  const nn::LanguageModelHead output(
      r.border(), w,
      {.vocabulary = kVocabulary, .first = w.parts()[0].begin, .label_smoothing = 0.1, .z_loss = 1e-2});
  Microbatch& mb = r.begin();
  mb.loss_scale = 3;
  Results results;
  output.forward(r.lane(), r.part(hidden(r), r.outside(), 1), mb);
  results.outputs["losses"] = r.join(mb.losses, mb.losses.shape(), Cut::kWhole);
  Async<Tensor> dx = output.backward(r.lane(), mb);
  mb.later.drain(r.lane());
  results.outputs["dx"] = r.join(dx.wait(r.lane()), hidden(r), r.outside());
  results.gradients = r.gradients();
  return results;
}

Results run_norm(ShardedRank& r, const nn::Norm& norm) {
  const Tensor dresidual = r.part(hidden(r), r.outside(), 9);
  return run(
      r, hidden(r), r.outside(), hidden(r), r.outside(),
      [&](const Tensor& x, Microbatch& mb) { return norm.forward(r.lane(), x, mb); },
      [&](const Tensor& dy, Microbatch& mb) { return norm.backward(r.lane(), dy, dresidual, mb); });
}
Results layer_norm(ShardedRank& r) {
  return run_norm(r, nn::LayerNorm(r.vector("w", kH), r.vector("b", kH), 1e-5));
}
Results rms_norm(ShardedRank& r) {
  return run_norm(r, nn::RmsNorm(r.vector("w", kH), 1e-5));
}

struct Case {
  const char* name;
  Results (*run)(ShardedRank&);
};
void PrintTo(const Case& test, std::ostream* out) {
  *out << test.name;
}
constexpr Case kCases[] = {{"Column", column},
                           {"Row", row},
                           {"RowWithBias", row_with_bias},
                           {"ColumnGathered", column_gathered},
                           {"RowScattered", row_scattered},
                           {"Mlp", mlp},
                           {"Attention", attention},
                           {"Embedding", embedding},
                           {"Head", head},
                           {"LayerNorm", layer_norm},
                           {"RmsNorm", rms_norm}};

Results on_one_rank(const Case& test, Form form) {
  form.chunks = 0;
  TestRank rank;
  const auto self = self_communicator("tp");
  ShardedRank sharded(rank.lane(), *self, *self, form);
  return test.run(sharded);
}

// By the rule of gradients (see gradient_difference) for gradients, and each output by its own size.
double distance(const Results& a, const Results& b, std::string* worst) {
  double largest = testing::gradient_difference(a.gradients, b.gradients, worst);
  for (const auto& [name, values] : b.outputs) {
    std::string ignored;
    const double d = testing::gradient_difference({{name, a.outputs.at(name)}}, {{name, values}}, &ignored);
    if (!(d <= largest)) {
      largest = d;
      *worst = name;
    }
  }
  return largest;
}

std::string describe(const Form& form, int ranks) {
  return fmt::format("tp {}, sequence parallel {}, {} chunks, {}", ranks, form.sequence_parallel, form.chunks,
                     name_of(form.dtype));
}

class TensorParallelTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Modules, TensorParallelTest, ::testing::ValuesIn(kCases),
                         [](const auto& which) { return which.param.name; });

TEST_P(TensorParallelTest, ShardedEqualsUnsharded) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const int chunks : {0, 3}) {
        for (const DType dtype : {DType::kF64, DType::kF32}) {
          const Form form{sequence_parallel, chunks, dtype, ranks};
          const Results expected = on_one_rank(GetParam(), form);
          run_local_ranks({.ranks = ranks}, [&](Communicator& tp) {
            TestRank rank;
            ShardedRank sharded(rank.lane(), tp, tp, form);
            const Results got = GetParam().run(sharded);
            std::string worst;
            EXPECT_LT(distance(got, expected, &worst), dtype == DType::kF64 ? 1e-12 : 1e-5)
                << worst << ": " << describe(form, ranks);
          });
        }
      }
    }
  }
}

TEST(RowParallelBias, AddedBeforeTheSumShows) {
  const Case wrong{"", row_with_bias_before_the_sum};
  for (const bool sequence_parallel : {false, true}) {
    for (const int ranks : {1, 2, 4}) {
      const Form form{sequence_parallel, 0, DType::kF64, ranks};
      const Results expected = on_one_rank(wrong, form);
      run_local_ranks({.ranks = ranks}, [&](Communicator& tp) {
        TestRank rank;
        ShardedRank sharded(rank.lane(), tp, tp, form);
        std::string worst;
        const double d = distance(wrong.run(sharded), expected, &worst);
        EXPECT_EQ(d > 1e-3, ranks > 1) << d;
        if (ranks > 1) {
          EXPECT_EQ(worst, "y");
        }
      });
    }
  }
}

// Does every collective but one (`target`), which it spoils the same way on all ranks.
class SpoilingCommunicator final : public PassingCommunicator {
 public:
  enum class How { kSkip, kWrongGroup };
  SpoilingCommunicator(Communicator& to, Communicator& pair, int target, How how)
      : PassingCommunicator(to), pair_(pair), target_(target), how_(how) {}
  int calls() const { return calls_; }

  Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp op) override {
    if (calls_++ != target_) return to_.all_reduce(lane, x, op);
    if (how_ == How::kWrongGroup) return pair_.all_reduce(lane, x, op);
    return Async<Tensor>(x);
  }
  Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) override {
    if (calls_++ != target_) return to_.all_gather_into(lane, shard, full);
    const std::int64_t n = shard.dim(0);
    if (how_ == How::kWrongGroup) {  // what the partner has, twice
      pair_.all_gather_into(lane, shard, full.slice(0, 2 * n)).wait(lane);
      ops::copy(lane, full.slice(0, 2 * n), full.slice(2 * n, 2 * n));
    } else {
      for (int r = 0; r < size(); ++r) ops::copy(lane, shard, full.slice(r * n, n));
    }
    return Async<Tensor>(full);
  }
  Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) override {
    if (calls_++ != target_) return to_.reduce_scatter_into(lane, full, shard);
    if (how_ == How::kWrongGroup) pair_.all_reduce(lane, full, ReduceOp::kSum).wait(lane);
    ops::copy(lane, full.slice(rank() * shard.dim(0), shard.dim(0)), shard);
    return Async<Tensor>(shard);
  }

 private:
  Communicator& pair_;
  int calls_ = 0, target_;
  How how_;
};

// Every collective of every module, left out or done over half of the ranks: each must show.
TEST_P(TensorParallelTest, SpoiledCollectivesShow) {
  using How = SpoilingCommunicator::How;
  for (const bool sequence_parallel : {false, true}) {
    for (const int chunks : {0, 3}) {
      const Form form{sequence_parallel, chunks, DType::kF64, 4};
      const Results expected = on_one_rank(GetParam(), form);
      for (const How how : {How::kSkip, How::kWrongGroup}) {
        int calls = 0;
        for (int target = -1; target < calls; ++target) {
          double largest = 0;
          std::mutex mutex;
          run_local_ranks({.ranks = 4}, [&](Communicator& world) {
            TestRank rank;
            const auto pair = world.split(world.rank() / 2, world.rank(), "pair");
            SpoilingCommunicator tp(world, *pair, target, how);
            ShardedRank sharded(rank.lane(), tp, world, form);
            std::string worst;
            const double d = distance(GetParam().run(sharded), expected, &worst);
            const std::lock_guard lock(mutex);
            largest = std::max(largest, d);
            if (target < 0) calls = tp.calls();
          });
          if (target < 0) {
            EXPECT_LT(largest, 1e-12);
          } else {
            EXPECT_GT(largest, 1e-3) << "collective " << target << " of " << calls << ", spoiled by "
                                     << (how == How::kSkip ? "skipping" : "the wrong group") << ": "
                                     << describe(form, 4);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
