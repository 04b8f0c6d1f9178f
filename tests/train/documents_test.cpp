// Documents that are packed into a sequence and kept apart: nothing of one reaches another, whatever ranks
// the sequence is cut over.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "comm/local/launcher.hpp"
#include "layout_run.hpp"

namespace weft::testing {
namespace {

LayoutCase base_of(const char* model) {
  return {.model = model, .layers = 2, .groups = model == std::string("llama") ? 6 : 12, .dropout = false};
}

// --- logits of given tokens.

// What the data set makes of one sample of these tokens and the one behind them; 0 ends documents.
Batch batch_of(std::vector<std::int32_t> tokens) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  tokens.push_back(9);
  const auto source = std::make_shared<MemoryTokens>(
      tokens, std::vector<std::int32_t>{static_cast<std::int32_t>(tokens.size())}, "test");
  const std::vector<std::int32_t> documents{0};
  const GptDataset dataset(source, documents, std::nullopt,
                           {.sequence_length = length,
                            .end_of_document = 0,
                            .reset_position_ids = true,
                            .reset_attention_mask = true,
                            .mask_end_of_document = true});
  Batch batch;
  Loader(dataset).load({}, 0, 0, 0, batch);
  return batch;
}

// [s][V]
std::vector<std::vector<double>> logits_of(const LayoutCase& layout, const Batch& batch) {
  std::vector<std::vector<double>> rows;
  const EngineOptions options = engine_options(layout);
  run_local_ranks({.ranks = layout.ranks()}, [&](Communicator& world) {
    TestRank rank;
    const Groups groups(world, options.layout);
    Engine engine(rank.lane(), groups, options);
    engine.initialize();
    const Tensor logits = engine.logits(batch);
    if (world.rank() != 0) return;
    for (std::int64_t i = 0; i < logits.dim(0); ++i) rows.push_back(to_doubles(logits.slice(i, 1)));
  });
  return rows;
}

double furthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : 1e30;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    most = std::max(most, std::isfinite(a[i]) ? std::abs(a[i] - b[i]) : 1e30);
  }
  return most;
}

std::vector<LayoutCase> cuts(const LayoutCase& base, bool more) {
  std::vector<LayoutCase> all;
  const auto add = [&](const auto& change) {
    LayoutCase layout = base;
    change(layout);
    const std::vector<LayoutCase> methods = with_every_cp_method(layout);
    all.insert(all.end(), methods.begin(), methods.end());
  };
  for (const int cp : {1, 2, 3}) {
    if (cp == 3 && !more) continue;
    add([&](LayoutCase& c) { c.cp = cp; });
    add([&](LayoutCase& c) { c.cp = cp, c.tp = 2, c.sequence_parallel = true; });
    if (more) add([&](LayoutCase& c) { c.cp = cp, c.pp = 2; });
  }
  return all;
}

TEST(Documents, ATokenReachesNoOtherDocument) {
  const Batch before = batch_of({11, 12, 0, 13, 14, 15, 0, 16}),
              after = batch_of({17, 12, 0, 13, 14, 15, 0, 16}), alone = batch_of({13, 14, 15, 0});
  EXPECT_EQ(before.position_ids, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2, 3, 0}));
  EXPECT_EQ(before.labels, (std::vector<std::int32_t>{12, 0, -100, 14, 15, 0, -100, 9}));
  for (const char* model : {"gpt2", "llama"}) {
    LayoutCase base = base_of(model);
    base.sequence = 8;
    LayoutCase short_one = base;
    short_one.sequence = 4;
    short_one.unused_positions = 4;  // tables of one size: the same weights
    const auto expected = logits_of(short_one, alone);
    base.documents = true;
    for (const LayoutCase& layout : cuts(base, false)) {
      const auto a = logits_of(layout, before), b = logits_of(layout, after);
      ASSERT_EQ(a.size(), 8u);
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_GT(furthest(a[i], b[i]), 1e-6) << layout.name() << " at " << i;
      for (std::size_t i = 3; i < 8; ++i) EXPECT_EQ(a[i], b[i]) << layout.name() << " at " << i;
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_LE(furthest(a[3 + i], expected[i]), 1e-6) << layout.name() << " at " << i;
      }
    }
    base.documents = false;  // else everything behind the token changes
    EXPECT_GT(furthest(logits_of(base, before)[7], logits_of(base, after)[7]), 1e-6);
  }
}

// --- sums of losses and gradients.

const std::vector<std::int64_t> kLengths{5, 3, 8};
constexpr std::int64_t kLength = 16;

// Adds token `i` of document `d`, which begins at `begin`.
void add_token(std::size_t d, std::int64_t i, std::int64_t vocabulary, Batch& out) {
  const Philox bits = philox(RandomKey{77}.with(d), static_cast<std::uint64_t>(i));
  const bool masked = i % 4 == 2;
  out.tokens.push_back(static_cast<std::int32_t>(bits[0] % vocabulary));
  out.labels.push_back(masked ? kIgnoredLabel : static_cast<std::int32_t>(bits[1] % vocabulary));
  out.position_ids.push_back(static_cast<std::int32_t>(i));
  out.target_tokens += masked ? 0 : 1;
}

void end_row(std::int64_t id, std::vector<std::int32_t> borders, Batch& out) {
  out.sequence_length = borders.back();
  out.borders.push_back(std::move(borders));
  out.sample_ids.push_back(id);
  ++out.rows;
}

// All documents in a row of 16.
void packed(std::int64_t id, const LayoutCase& layout, Batch& out) {
  std::vector<std::int32_t> borders{0};
  for (std::size_t d = 0; d < kLengths.size(); ++d) {
    for (std::int64_t i = 0; i < kLengths[d]; ++i) add_token(d, i, layout.vocabulary, out);
    borders.push_back(borders.back() + static_cast<std::int32_t>(kLengths[d]));
  }
  end_row(id, borders, out);
}

// Document `id` in a row of its own, of 16 tokens with what fills it up.
void padded(std::int64_t id, const LayoutCase& layout, Batch& out) {
  const auto d = static_cast<std::size_t>(id);
  for (std::int64_t i = 0; i < kLength; ++i) {
    if (i < kLengths[d]) {
      add_token(d, i, layout.vocabulary, out);
      continue;
    }
    out.tokens.push_back(7);
    out.labels.push_back(kIgnoredLabel);
    out.position_ids.push_back(static_cast<std::int32_t>(i));
  }
  end_row(id, {0, static_cast<std::int32_t>(kLength)}, out);
}

// Sums over all target tokens.
struct Sums {
  Engine::LossSum loss;
  Gradients gradients;

  void add(const LayoutResult& result) {
    loss.sum += result.first.sum;
    loss.tokens += result.first.tokens;
    for (const auto& [name, values] : result.gradients) {
      std::vector<double>& sum = gradients[name];
      sum.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        sum[i] += values[i] * static_cast<double>(result.first.tokens);
      }
    }
  }
};

Sums sums_of(const LayoutCase& layout, const decltype(RunHooks::fill)& fill) {
  RunHooks hooks;
  hooks.fill = fill;
  Sums sums;
  sums.add(run_layout(layout, 0, hooks));
  return sums;
}

// Each document in a run of its own.
Sums alone(const LayoutCase& layout) {
  Sums sums;
  for (std::size_t d = 0; d < kLengths.size(); ++d) {
    LayoutCase one = layout;
    one.sequence = kLengths[d];
    one.unused_positions = kLength - kLengths[d];
    RunHooks hooks;
    hooks.fill = [d](std::int64_t id, const LayoutCase& c, Batch& out) {
      for (std::int64_t i = 0; i < kLengths[d]; ++i) add_token(d, i, c.vocabulary, out);
      end_row(id, {0, static_cast<std::int32_t>(kLengths[d])}, out);
    };
    sums.add(run_layout(one, 0, hooks));
  }
  return sums;
}

void expect_equal(const Sums& found, const Sums& expected, double tolerance, const std::string& name) {
  EXPECT_EQ(found.loss.tokens, expected.loss.tokens) << name;
  EXPECT_NEAR(found.loss.sum, expected.loss.sum, tolerance * expected.loss.sum) << name;
  std::string worst;
  EXPECT_LE(gradient_difference(found.gradients, expected.gradients, &worst), tolerance)
      << name << ": " << worst;
}

TEST(Documents, PackedPaddedAndAloneAreTheSame) {
  for (const char* model : {"gpt2", "llama"}) {
    for (const auto& [dtype, tolerance] : {std::pair{DType::kF32, 1e-5}, {DType::kF64, 1e-11}}) {
      LayoutCase base = base_of(model);
      base.dtype = dtype;
      base.sequence = kLength;
      base.global_batch = 1;
      const Sums expected = alone(base);
      EXPECT_EQ(expected.loss.tokens, 12);
      for (LayoutCase layout : cuts(base, true)) {
        for (const bool fused : {false, true}) {
          layout.fused = fused;
          layout.documents = true;
          layout.global_batch = 1;
          expect_equal(sums_of(layout, packed), expected, tolerance, "packed: " + layout.name());
          layout.documents = false;
          layout.global_batch = 3;
          if (!fused) expect_equal(sums_of(layout, padded), expected, tolerance, "padded: " + layout.name());
          layout.global_batch = 1;
          const bool odd = layout.cp > 1 || !layout.sequence_parallel;  // lengths are taken then
          if (!fused && odd && dtype == DType::kF64) {
            expect_equal(alone(layout), expected, tolerance, "alone: " + layout.name());
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::testing
