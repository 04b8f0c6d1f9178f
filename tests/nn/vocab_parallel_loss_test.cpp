// The loss on logits whose vocabulary is cut over ranks, against references that were made on one: label
// smoothing, z-loss, ignored rows, huge logits.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "comm/local/launcher.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/elementwise.hpp"
#include "support/golden.hpp"
#include "support/rank.hpp"

namespace weft {
namespace {

using Values = std::vector<double>;

struct Loss {
  Values losses, lse, dlogits;  // of the whole vocabulary
};

// Rows [rows, vocabulary] cut over tp ranks, padded to equal parts; the same result on every rank, or a
// failure.
Loss cut_loss(int tp, const Values& logits, const std::vector<std::int32_t>& labels, double smoothing,
              double z_loss) {
  const auto rows = static_cast<std::int64_t>(labels.size());
  const std::int64_t vocabulary = static_cast<std::int64_t>(logits.size()) / rows,
                     part = (vocabulary + tp - 1) / tp;
  std::vector<Loss> of_rank(static_cast<std::size_t>(tp));
  Values dlogits(logits.size());
  std::mutex mutex;
  run_local_ranks({.ranks = tp}, [&](Communicator& world) {
    testing::TestRank rank(1 << 20);
    Lane& lane = rank.lane();
    const std::int64_t first = world.rank() * part;
    const ops::CrossEntropyOptions options{
        .vocabulary = vocabulary, .first = first, .label_smoothing = smoothing, .z_loss = z_loss};
    const Tensor mine = lane.alloc(DType::kF64, {rows, 1, part}, "test");
    ops::fill(lane, mine, 7);  // padding: any number
    const auto each = [&](const auto& body) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < part && first + j < vocabulary; ++j) {
          body(mine.data<double>()[i * part + j], static_cast<std::size_t>(i * vocabulary + first + j));
        }
      }
    };
    each([&](double& x, std::size_t k) { x = logits[k]; });
    const Tensor ids = lane.alloc(DType::kI32, {1, rows}, "test");
    std::copy(labels.begin(), labels.end(), ids.data<std::int32_t>());
    const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, mine, ids, options);
    const Tensor max = lane.alloc(DType::kF64, local.max.shape(), "test");
    ops::copy(lane, local.max, max);
    world.all_reduce(lane, max, ReduceOp::kMax).wait(lane);
    ops::cross_entropy_rescale(lane, local, max);
    world.all_reduce(lane, local.sums).wait(lane);
    const ops::CrossEntropyResult r = ops::cross_entropy_finish(lane, max, local.sums, ids, options);
    ops::cross_entropy_backward(lane, mine, r.lse, ids, options, 1);
    const std::lock_guard lock(mutex);
    each([&](double& x, std::size_t k) { dlogits[k] = x; });
    of_rank[static_cast<std::size_t>(world.rank())] = {
        testing::to_doubles(r.losses), testing::to_doubles(r.lse), {}};
  });
  for (const Loss& other : of_rank) EXPECT_EQ(other.losses, of_rank.front().losses) << "ranks differ";
  Loss loss = of_rank.front();
  loss.dlogits = dlogits;
  return loss;
}

void expect_near(const Values& a, const Values& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], tolerance * std::max(1.0, std::abs(b[i]))) << what << " " << i;
  }
}

Values scaled_rows(Values x, const Values& weight) {
  const std::size_t columns = x.size() / weight.size();
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= weight[i / columns];
  return x;
}

class VocabParallelLoss : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(TensorParallel, VocabParallelLoss, ::testing::Values(1, 2, 4));

TEST_P(VocabParallelLoss, GoldenWithSmoothingAndZLoss) {
  const SafetensorsFile file(testing::golden("ops/cross_entropy") / "tensors.safetensors");
  const auto get = [&](const std::string& name) { return testing::to_doubles(file.get(name)); };
  const Values logits = get("logits"), weight = get("grad_loss");
  std::vector<std::int32_t> labels;
  for (const std::int64_t label : file.get("labels").values<std::int64_t>()) {
    labels.push_back(static_cast<std::int32_t>(label));
  }
  for (const std::string alpha : {"0.0", "0.1", "0.23"}) {
    const Loss r = cut_loss(GetParam(), logits, labels, std::stod(alpha), 0);
    expect_near(r.losses, get("ls" + alpha + ".megatron.loss"), 1e-6, "loss " + alpha);
    expect_near(scaled_rows(r.dlogits, weight), get("ls" + alpha + ".megatron.dlogits"), 1e-6,
                "gradient " + alpha);
  }
  const Loss with_z = cut_loss(GetParam(), logits, labels, 0, 1e-3),
             plain = cut_loss(GetParam(), logits, labels, 0, 0);
  Values z = with_z.losses, dz = with_z.dlogits;
  for (std::size_t i = 0; i < z.size(); ++i) z[i] -= plain.losses[i];
  for (std::size_t i = 0; i < dz.size(); ++i) dz[i] -= plain.dlogits[i];
  expect_near(z, get("zloss.per_token"), 1e-6, "z-loss");
  expect_near(with_z.lse, get("zloss.lse"), 1e-6, "lse");
  expect_near(scaled_rows(dz, weight), get("zloss.dlogits"), 1e-6, "z-loss gradient");
}

// megatron.core.tensor_parallel.vocab_parallel_cross_entropy on one rank (on several, its smoothing is known
// to be wrong).
TEST_P(VocabParallelLoss, MegatronCore) {
  const SafetensorsFile file(testing::golden("megatron/vocab_parallel_cross_entropy") /
                             "tensors.safetensors");
  const auto get = [&](const std::string& name) { return testing::to_doubles(file.get(name)); };
  std::vector<std::int32_t> labels;
  for (const std::int64_t label : file.get("labels").values<std::int64_t>()) {
    labels.push_back(static_cast<std::int32_t>(label));
  }
  for (const std::string alpha : {"0.0", "0.1"}) {
    const Loss r = cut_loss(GetParam(), get("logits"), labels, std::stod(alpha), 0);
    expect_near(r.losses, get("ls" + alpha + ".loss"), 1e-5, "loss " + alpha);
    expect_near(scaled_rows(r.dlogits, get("grad_loss")), get("ls" + alpha + ".dlogits"), 1e-5,
                "gradient " + alpha);
  }
}

// One row of logits 0 .. 7, an ignored row, and one with a huge logit.
TEST_P(VocabParallelLoss, KnownValues) {
  Values logits{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 1e4, 0, 0, 0, 0, 0, 0, 0};
  const std::vector<std::int32_t> labels{3, -100, 0};
  const Loss plain = cut_loss(GetParam(), logits, labels, 0, 0);
  EXPECT_NEAR(plain.losses[0], 4.4583397, 1e-6);
  EXPECT_EQ(plain.losses[1], 0);
  EXPECT_NEAR(plain.losses[2], 0, 1e-12);
  for (int j = 0; j < 8; ++j) EXPECT_EQ(plain.dlogits[8 + static_cast<std::size_t>(j)], 0);
  // Megatron's form: the mass goes to the other entries.
  const Loss smoothed = cut_loss(GetParam(), logits, labels, 0.1, 0);
  EXPECT_NEAR(smoothed.losses[0], 4.4011968, 1e-6);
  EXPECT_EQ(smoothed.losses[1], 0);
  for (const double d : smoothed.dlogits) EXPECT_TRUE(std::isfinite(d));
}

}  // namespace
}  // namespace weft
