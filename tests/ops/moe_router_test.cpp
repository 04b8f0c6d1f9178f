// Routing, its balance losses and capacity, against plain formulas in double.
#include <algorithm>
#include <numeric>

#include "ops/moe.hpp"
#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;
using ops::RouterOptions;
using ops::RouterScore;
using ops::Routing;

constexpr RouterScore kScores[] = {RouterScore::kSoftmax, RouterScore::kSoftmaxOverAll,
                                   RouterScore::kSigmoid};

struct Case {
  std::int64_t experts;
  RouterOptions options;
  std::string name;
};

// All kinds of scores, one expert, all experts chosen, groups, a scale.
std::vector<Case> cases() {
  std::vector<Case> list;
  for (const RouterScore score : kScores) {
    const std::string kind = "score " + std::to_string(static_cast<int>(score));
    list.push_back({8, {.topk = 2, .score = score}, kind});
    list.push_back({1, {.topk = 1, .score = score}, kind + ", one expert"});
    list.push_back({7, {.topk = 1, .score = score, .scale = 1.5}, kind + ", one choice"});
    list.push_back({5, {.topk = 5, .score = score}, kind + ", all experts"});
    list.push_back(
        {12, {.topk = 4, .score = score, .groups = 4, .group_topk = 2, .scale = 2.5}, kind + ", groups"});
    list.push_back({70, {.topk = 6, .score = score, .scale = 0.25}, kind + ", many"});
  }
  return list;
}

Values softmax(const Values& x) {
  const double max = *std::max_element(x.begin(), x.end());
  Values y(x.size());
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += y[i] = std::exp(x[i] - max);
  for (double& v : y) v /= sum;
  return y;
}

Values scores_of(RouterScore score, const Values& logits) {
  if (score == RouterScore::kSoftmaxOverAll) return softmax(logits);
  Values s = logits;
  if (score == RouterScore::kSigmoid) {
    for (double& v : s) v = 1 / (1 + std::exp(-v));
  }
  return s;
}

// Places of the k largest, the first of equal ones first.
std::vector<std::size_t> largest(const Values& x, std::size_t k) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return x[a] > x[b]; });
  order.resize(k);
  return order;
}

std::vector<std::size_t> choice(const RouterOptions& o, Values ranked) {
  const auto k = static_cast<std::size_t>(o.topk);
  if (o.groups > 0) {
    const auto groups = static_cast<std::size_t>(o.groups), each = ranked.size() / groups;
    Values sums(groups);
    for (std::size_t g = 0; g < groups; ++g) {
      const Values own(ranked.begin() + static_cast<std::ptrdiff_t>(g * each),
                       ranked.begin() + static_cast<std::ptrdiff_t>((g + 1) * each));
      for (const std::size_t i : largest(own, k / static_cast<std::size_t>(o.group_topk))) sums[g] += own[i];
    }
    const std::vector<std::size_t> open = largest(sums, static_cast<std::size_t>(o.group_topk));
    for (std::size_t e = 0; e < ranked.size(); ++e) {
      if (std::find(open.begin(), open.end(), e / each) == open.end()) ranked[e] = -INFINITY;
    }
  }
  return largest(ranked, k);
}

Values weights_of(const RouterOptions& o, const Values& logits, const std::vector<std::size_t>& chosen) {
  Values w;
  const Values scores = scores_of(o.score, logits);
  for (const std::size_t e : chosen) w.push_back(scores[e]);
  if (o.score == RouterScore::kSoftmax) w = softmax(w);
  if (o.score == RouterScore::kSigmoid && o.topk > 1) {
    const double sum = std::accumulate(w.begin(), w.end(), 1e-20);
    for (double& v : w) v /= sum;
  }
  for (double& v : w) v *= o.scale;
  return w;
}

Values row_of(const Tensor& x, std::int64_t r) {
  Values v;
  for (std::int64_t j = 0; j < x.columns(); ++j) v.push_back(element(x, r * x.columns() + j));
  return v;
}

// Every third token is not counted.
Tensor some_counted(Lane& lane, std::int64_t n) {
  Tensor counted = lane.alloc(DType::kU8, {n}, "counted");
  for (std::int64_t i = 0; i < n; ++i) counted.data<std::uint8_t>()[i] = i % 3 == 1 ? 0 : 1;
  return counted;
}
bool is_counted(const Tensor& counted, std::int64_t r) {
  return !counted.defined() || counted.data<std::uint8_t>()[r] != 0;
}

Tensor integers(Lane& lane, const Shape& shape, const std::vector<int>& values) {
  return make(lane, DType::kI32, shape, Values(values.begin(), values.end()));
}

TEST(Route, IsTheFormula) {
  for (const Case& c : cases()) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      for (const bool plain : {true, false}) {
        Bench bench(2);
        Lane& lane = bench.lane;
        const std::int64_t n = 41;
        const Tensor logits = random_strided(lane, dtype, {n, c.experts}, 1, 2);
        const Tensor bias = plain ? Tensor() : random(lane, dtype, {c.experts}, 2, 0.5);
        const Tensor counted = plain ? Tensor() : some_counted(lane, n);
        const Routing routing = ops::route(lane, logits, bias, counted, c.options);
        Values probs, experts;
        for (std::int64_t r = 0; r < n; ++r) {
          const Values row = row_of(logits, r);
          Values ranked = scores_of(c.options.score, row);
          for (std::size_t e = 0; bias.defined() && e < ranked.size(); ++e) {
            ranked[e] += element(bias, static_cast<std::int64_t>(e));
          }
          const std::vector<std::size_t> chosen = choice(c.options, ranked);
          const Values weights = weights_of(c.options, row, chosen);
          for (std::size_t j = 0; j < chosen.size(); ++j) {
            experts.push_back(is_counted(counted, r) ? static_cast<double>(chosen[j]) : -1);
            probs.push_back(is_counted(counted, r) ? weights[j] : 0);
          }
        }
        EXPECT_EQ(values_of(routing.experts), experts) << c.name;
        expect_near(routing.probs, probs, dtype == DType::kF64 ? 1e-14 : 2e-6, c.name);
      }
    }
  }
}

TEST(Route, EqualScoresGoByNumber) {
  Bench bench;
  Lane& lane = bench.lane;
  for (const RouterScore score : kScores) {
    const Tensor logits = make(lane, DType::kF32, {2, 4}, {1, 2, 2, 2, 0, 0, 0, 0});
    const Routing r = ops::route(lane, logits, {}, {}, {.topk = 3, .score = score});
    EXPECT_EQ(values_of(r.experts), (Values{1, 2, 3, 0, 1, 2}));
    // Of equal groups the first two, and in them the best.
    const Tensor wide = make(lane, DType::kF32, {1, 6}, {1, 3, 3, 1, 1, 3});
    const RouterOptions groups{.topk = 2, .score = score, .groups = 3, .group_topk = 2};
    EXPECT_EQ(values_of(ops::route(lane, wide, {}, {}, groups).experts), (Values{1, 2}));
  }
}

TEST(Route, ChoosesSomethingOfNotANumber) {
  Bench bench;
  const Tensor logits = constant(bench.lane, DType::kF32, {1, 6}, std::nan(""));
  for (const RouterScore score : kScores) {
    const RouterOptions options{.topk = 4, .score = score, .groups = 3, .group_topk = 2};
    const Routing r = ops::route(bench.lane, logits, {}, {}, options);
    Values experts = values_of(r.experts);
    std::sort(experts.begin(), experts.end());
    EXPECT_EQ(experts, (Values{0, 1, 2, 3}));
    EXPECT_TRUE(std::isnan(element(r.probs, 0)));
  }
}

TEST(Route, BackwardIsTheDerivative) {
  for (const Case& c : cases()) {
    Bench bench;
    Lane& lane = bench.lane;
    const std::int64_t n = 7;
    const Tensor logits = random(lane, DType::kF64, {n, c.experts}, 3, 2),
                 bias = random(lane, DType::kF64, {c.experts}, 4, 0.5),
                 dprobs = random(lane, DType::kF64, {n, c.options.topk}, 5);
    const Tensor counted = some_counted(lane, n);
    const Routing routing = ops::route(lane, logits, bias, counted, c.options);
    expect_gradient(
        logits, values_of(ops::route_backward(lane, dprobs, logits, routing, c.options)),
        [&] { return dot(ops::route(lane, logits, bias, counted, c.options).probs, dprobs); }, c.name, 1,
        1e-7);
    // Rows of f32 against double.
    const auto narrow = [&](const Tensor& x) { return make(lane, DType::kF32, x.shape(), values_of(x)); };
    expect_near(ops::route_backward(lane, narrow(dprobs), narrow(logits), routing, c.options),
                values_of(ops::route_backward(lane, dprobs, logits, routing, c.options)), 3e-6, c.name, 0.1);
  }
}

// What expert_order and collect_values make of a dropped choice: dprobs 0. It has its share in the sum.
TEST(Route, DroppedChoicesKeepTheirShare) {
  for (const RouterScore score : kScores) {
    Bench bench;
    Lane& lane = bench.lane;
    const RouterOptions options{.topk = 3, .score = score};
    const Tensor logits = random(lane, DType::kF64, {9, 6}, 6), dprobs = random(lane, DType::kF64, {9, 3}, 7);
    for (std::int64_t i = 1; i < dprobs.elems(); i += 4) set_element(dprobs, i, 0);
    const Routing routing = ops::route(lane, logits, {}, {}, options);
    expect_gradient(
        logits, values_of(ops::route_backward(lane, dprobs, logits, routing, options)),
        [&] { return dot(ops::route(lane, logits, {}, {}, options).probs, dprobs); }, "dropped");
  }
}

// Scores of the balance losses.
Values balance_scores(RouterScore score, const Values& logits) {
  if (score != RouterScore::kSigmoid) return softmax(logits);
  Values s = scores_of(score, logits);
  const double sum = std::accumulate(s.begin(), s.end(), 1e-20);
  for (double& v : s) v /= sum;
  return s;
}

double squared_lse(const Values& logits) {
  double sum = 0;
  for (const double l : logits) sum += std::exp(l);
  return std::log(sum) * std::log(sum);
}

Values sums_of(const Tensor& logits, const Tensor& counted, std::int64_t groups, const RouterOptions& o) {
  const auto n = static_cast<std::size_t>(logits.columns()), columns = 2 * n + 2;
  Values sums(static_cast<std::size_t>(groups) * columns);
  for (std::int64_t r = 0; r < logits.dim(0); ++r) {
    if (!is_counted(counted, r)) continue;
    double* of_group = sums.data() + static_cast<std::size_t>(r % groups) * columns;
    const Values row = row_of(logits, r), scores = balance_scores(o.score, row);
    for (std::size_t e = 0; e < n; ++e) of_group[e] += scores[e];
    for (const std::size_t e : largest(scores, static_cast<std::size_t>(o.topk))) of_group[n + e] += 1;
    of_group[2 * n] += 1;
    of_group[2 * n + 1] += squared_lse(row);
  }
  return sums;
}

// The aux and the z-loss. `chosen` (or empty: those of `sums`) are counts that a derivative leaves as they
// are.
Values losses_of(const Values& sums, std::int64_t experts, const RouterOptions& o,
                 const Values& chosen = {}) {
  const auto n = static_cast<std::size_t>(experts), columns = 2 * n + 2;
  double aux = 0, filled = 0, tokens = 0, squares = 0;
  for (std::size_t g = 0; g < sums.size() / columns; ++g) {
    const double* s = sums.data() + g * columns;
    const double* c = (chosen.empty() ? sums.data() : chosen.data()) + g * columns + n;
    const double t = s[2 * n];
    tokens += t;
    squares += s[2 * n + 1];
    if (t == 0) continue;
    ++filled;
    for (std::size_t e = 0; e < n; ++e) aux += static_cast<double>(n) / (o.topk * t * t) * s[e] * c[e];
  }
  return {filled == 0 ? 0 : aux / filled, tokens == 0 ? 0 : squares / tokens};
}

TEST(Balance, SumsAndLosses) {
  for (const Case& c : cases()) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      for (const std::int64_t groups : {1, 3, 100}) {
        for (const bool all : {true, false}) {
          Bench bench(2);
          Lane& lane = bench.lane;
          const std::int64_t n = 50;
          const Tensor logits = random_strided(lane, dtype, {n, c.experts}, 11, 2);
          const Tensor counted = all ? Tensor() : some_counted(lane, n);
          const Tensor sums = ops::balance_sums(lane, logits, counted, groups, c.options);
          ASSERT_EQ(sums.shape(), Shape({groups, 2 * c.experts + 2}));
          const Values expected = sums_of(logits, counted, groups, c.options);
          const double tolerance = dtype == DType::kF64 ? 1e-13 : 1e-6;
          expect_near(sums, expected, tolerance, c.name);
          const Tensor out = make(lane, DType::kF64, {2}, {10, 20});
          ops::balance_losses(lane, sums, c.options, 0.5, out);
          const Values losses = losses_of(expected, c.experts, c.options);
          expect_near(out, {10 + 0.5 * losses[0], 20 + 0.5 * losses[1]}, tolerance, c.name);
        }
      }
    }
  }
}

TEST(Balance, SumsOfPartsAddUp) {
  Bench bench;
  Lane& lane = bench.lane;
  const RouterOptions options{.topk = 3};
  const Tensor logits = random(lane, DType::kF32, {64, 9}, 12);
  const Tensor whole = ops::balance_sums(lane, logits, {}, 4, options);
  Values parts(static_cast<std::size_t>(whole.elems()));
  for (std::int64_t first = 0; first < 64; first += 16) {
    const Values own = values_of(ops::balance_sums(lane, logits.slice(first, 16), {}, 4, options));
    for (std::size_t i = 0; i < own.size(); ++i) parts[i] += own[i];
  }
  expect_near(whole, parts, 1e-14, "sums");
}

TEST(Balance, BackwardIsTheDerivative) {
  for (const Case& c : cases()) {
    for (const std::int64_t groups : {1, 2, 9}) {
      Bench bench;
      Lane& lane = bench.lane;
      const std::int64_t n = 8;
      const Tensor logits = random(lane, DType::kF64, {n, c.experts}, 13, 1.5);
      const Tensor counted = some_counted(lane, n);
      const Tensor sums = ops::balance_sums(lane, logits, counted, groups, c.options);
      const Values chosen = values_of(sums);
      for (const ops::BalanceWeights weights :
           {ops::BalanceWeights{.aux = 0.7}, ops::BalanceWeights{.z = 0.3},
            ops::BalanceWeights{.aux = 0.2, .z = 0.9}}) {
        const auto loss = [&] {
          const Values l =
              losses_of(sums_of(logits, counted, groups, c.options), c.experts, c.options, chosen);
          return weights.aux * l[0] + weights.z * l[1];
        };
        const Tensor dlogits = constant(lane, DType::kF64, {n, c.experts}, 0.125);
        ops::balance_backward(lane, logits, counted, sums, c.options, weights, dlogits);
        Values gradient = values_of(dlogits);
        for (double& g : gradient) g -= 0.125;
        // Where all experts are chosen the scores' sum counts, which is constant: rounding alone remains.
        if (c.experts == c.options.topk && weights.z == 0) {
          for (const double g : gradient) EXPECT_NEAR(g, 0, 1e-15);
        } else {
          expect_gradient(logits, gradient, loss, c.name, 1, 1e-6);
        }
        const auto narrow = [&](const Tensor& x) { return make(lane, DType::kF32, x.shape(), values_of(x)); };
        const Tensor dnarrow = zeros(lane, DType::kF32, dlogits.shape());
        ops::balance_backward(lane, narrow(logits), counted, sums, c.options, weights, dnarrow);
        expect_near(dnarrow, gradient, 3e-6, c.name, 0.01);
      }
    }
  }
}

TEST(Balance, WithoutTokensThereIsNoLoss) {
  Bench bench;
  Lane& lane = bench.lane;
  const RouterOptions options{.topk = 2};
  const Tensor logits = random(lane, DType::kF32, {5, 4}, 14),
               counted = lane.alloc(DType::kU8, {5}, "counted");
  std::memset(counted.raw(), 0, counted.bytes());
  const Tensor sums = ops::balance_sums(lane, logits, counted, 2, options);
  for (const double v : values_of(sums)) EXPECT_EQ(v, 0);
  const Tensor out = zeros(lane, DType::kF64, {2}), dlogits = constant(lane, DType::kF32, {5, 4}, 3);
  ops::balance_losses(lane, sums, options, 1, out);
  ops::balance_backward(lane, logits, counted, sums, options, {1, 1}, dlogits);
  EXPECT_EQ(values_of(out), (Values{0, 0}));
  EXPECT_EQ(values_of(dlogits), Values(20, 3));
}

TEST(Experts, AreCounted) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor out = make(lane, DType::kF64, {4}, {1, 1, 1, 1});
  ops::count_experts(lane, integers(lane, {3, 2}, {0, 2, 2, -1, -1, 0}), out);
  EXPECT_EQ(values_of(out), (Values{3, 1, 3, 1}));
  EXPECT_THROW(ops::count_experts(lane, integers(lane, {1, 1}, {4}), out), Error);
}

TEST(Capacity, KeepsTheFirstPlaces) {
  Bench bench(2);
  Lane& lane = bench.lane;
  const Routing routing{make(lane, DType::kF32, {4, 2}, {.1, .9, .2, .8, .3, .7, .4, .6}),
                        integers(lane, {4, 2}, {0, 1, 0, 1, 2, 0, 0, -1})};
  ops::drop_over_capacity(lane, routing, integers(lane, {4}, {3, 1, 0, 2}), 3, 2, true);
  EXPECT_EQ(values_of(routing.experts), (Values{-1, 1, 0, 1, 2, 0, -1, -1}));
  expect_near(routing.probs, {0, .9, .2, .8, .3, .7, 0, .6}, 1e-7, "weights");
}

TEST(Capacity, KeepsTheLargestWeights) {
  Bench bench(2);
  Lane& lane = bench.lane;
  const Routing routing{make(lane, DType::kF64, {4, 2}, {.1, .9, .2, .8, .3, .7, .4, .6}),
                        integers(lane, {4, 2}, {0, 1, 0, 1, 2, 0, 0, 1})};
  ops::drop_over_capacity(lane, routing, integers(lane, {4}, {0, 1, 2, 3}), 3, 2, false);
  EXPECT_EQ(values_of(routing.experts), (Values{-1, 1, -1, 1, 2, 0, 0, -1}));
  EXPECT_EQ(values_of(routing.probs), (Values{0, .9, 0, .8, .3, .7, .4, 0}));
}

TEST(Capacity, TiesGoByPlaceThenByChoice) {
  Bench bench;
  Lane& lane = bench.lane;
  const auto kept = [&](const Values& probs, const std::vector<int>& places, std::int64_t capacity,
                        bool by_position) {
    const Routing routing{make(lane, DType::kF32, {3, 2}, probs), integers(lane, {3, 2}, {0, 0, 0, 0, 0, 0})};
    ops::drop_over_capacity(lane, routing, integers(lane, {3}, places), 1, capacity, by_position);
    return values_of(routing.experts);
  };
  const Values equal(6, 0.5);
  EXPECT_EQ(kept(equal, {2, 1, 0}, 3, false), (Values{-1, -1, 0, -1, 0, 0}));
  EXPECT_EQ(kept(equal, {2, 1, 0}, 3, true), (Values{-1, -1, 0, -1, 0, 0}));
  EXPECT_EQ(kept(equal, {7, 7, 7}, 2, true), (Values{0, -1, 0, -1, -1, -1}));
  EXPECT_EQ(kept({.5, .6, .5, .5, .6, .5}, {0, 1, 2}, 3, false), (Values{0, 0, -1, -1, 0, -1}));
  EXPECT_EQ(kept({.5, std::nan(""), .5, std::nan(""), .6, .5}, {2, 1, 0}, 4, false),
            (Values{0, -1, 0, -1, 0, 0}));
  EXPECT_EQ(kept(equal, {0, 1, 2}, 0, true), Values(6, -1));
  EXPECT_EQ(kept(equal, {0, 1, 2}, 6, true), Values(6, 0));
}

// Against a full sort, with many ties.
TEST(Capacity, IsASort) {
  Bench bench(3);
  Lane& lane = bench.lane;
  const std::int64_t n = 200, k = 3, experts = 5, capacity = 60;
  for (const bool by_position : {false, true}) {
    Routing routing = ops::route(lane, random(lane, DType::kF32, {n, experts}, 21), {}, {}, {.topk = 3});
    std::vector<int> places(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int>(i * 77 % 200);
    for (std::int64_t i = 0; i < n * k; ++i) {
      set_element(routing.probs, i, std::round(element(routing.probs, i) * 8) / 8);
    }
    const Values experts_before = values_of(routing.experts), probs_before = values_of(routing.probs);
    ops::drop_over_capacity(lane, routing, integers(lane, {n}, places), experts, capacity, by_position);
    Values expected = experts_before;
    for (std::int64_t e = 0; e < experts; ++e) {
      std::vector<std::size_t> own;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (experts_before[i] == static_cast<double>(e)) own.push_back(i);
      }
      std::sort(own.begin(), own.end(), [&](std::size_t a, std::size_t b) {
        if (!by_position && probs_before[a] != probs_before[b]) return probs_before[a] > probs_before[b];
        return places[a / 3] < places[b / 3];
      });
      for (std::size_t i = capacity; i < own.size(); ++i) expected[own[i]] = -1;
    }
    EXPECT_EQ(values_of(routing.experts), expected);
    EXPECT_NE(expected, experts_before);
    for (std::int64_t i = 0; i < n * k; ++i) {
      const bool dropped = element(routing.experts, i) < 0;
      EXPECT_EQ(element(routing.probs, i), dropped ? 0 : probs_before[static_cast<std::size_t>(i)]);
    }
  }
}

TEST(Router, WorkersAndMeta) {
  for (const RouterScore score : kScores) {
    const RouterOptions options{.topk = 4, .score = score, .groups = 8, .group_topk = 3};
    const std::int64_t n = 3000, experts = 64;
    Bench one(1), two(2), three(3);
    const Tensor logits = random(one.lane, DType::kF32, {n, experts}, 31),
                 dprobs = random(one.lane, DType::kF32, {n, 4}, 32);
    const Tensor counted = some_counted(one.lane, n);
    const Tensor places = zeros(one.lane, DType::kI32, {n});
    struct Results {
      Routing routing;
      Tensor dlogits, sums;
    };
    const auto run = [&](Lane& lane) {
      Results r{ops::route(lane, logits, {}, counted, options), {}, {}};
      r.sums = ops::balance_sums(lane, logits, counted, 5, options);
      r.dlogits = ops::route_backward(lane, dprobs, logits, r.routing, options);
      ops::balance_backward(lane, logits, counted, r.sums, options, {0.1, 0.2}, r.dlogits);
      ops::drop_over_capacity(lane, r.routing, places, experts, 100, false);
      return r;
    };
    const Results first = run(one.lane);
    for (Bench* bench : {&two, &three}) {
      const Results r = run(bench->lane);
      EXPECT_TRUE(same_bits(r.routing.experts, first.routing.experts));
      EXPECT_TRUE(same_bits(r.routing.probs, first.routing.probs));
      EXPECT_TRUE(same_bits(r.sums, first.sums));
      EXPECT_TRUE(same_bits(r.dlogits, first.dlogits));
    }
  }
  expect_same_plan([](Lane& lane) {
    const RouterOptions options{.topk = 2};
    const Tensor logits = lane.alloc(DType::kF32, {40, 6}, "logits"),
                 places = lane.alloc(DType::kI32, {40}, "places"),
                 out = lane.alloc(DType::kF64, {2}, "losses"),
                 counts = lane.alloc(DType::kF64, {6}, "counts");
    if (!lane.meta()) {
      for (const Tensor& x : {logits, places, out, counts}) std::memset(x.raw(), 0, x.bytes());
    }
    const Routing routing = ops::route(lane, logits, {}, {}, options);
    const Tensor sums = ops::balance_sums(lane, logits, {}, 3, options);
    const Tensor dlogits = ops::route_backward(lane, routing.probs, logits, routing, options);
    ops::balance_backward(lane, logits, {}, sums, options, {1, 1}, dlogits);
    ops::balance_losses(lane, sums, options, 1, out);
    ops::count_experts(lane, routing.experts, counts);
    ops::drop_over_capacity(lane, routing, places, 6, 3, true);
  });
}

TEST(Router, RefusesWhatDoesNotFit) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor logits = zeros(lane, DType::kF32, {3, 6});
  const auto refused = [&](const RouterOptions& options) {
    EXPECT_THROW(ops::route(lane, logits, {}, {}, options), Error);
  };
  refused({.topk = 0});
  refused({.topk = 7});
  refused({.topk = 2, .groups = 4, .group_topk = 1});  // 6 experts in 4 groups
  refused({.topk = 2, .groups = 3, .group_topk = 4});
  refused({.topk = 3, .groups = 3, .group_topk = 1});  // 3 choices of 2 experts
  refused({.topk = 1, .groups = 3, .group_topk = 2});  // groups measured by nothing
  EXPECT_THROW(ops::route(lane, zeros(lane, DType::kBF16, {3, 6}), {}, {}, {}), Error);
  EXPECT_THROW(ops::route(lane, logits, zeros(lane, DType::kF32, {5}), {}, {}), Error);
  EXPECT_THROW(ops::route(lane, logits, {}, zeros(lane, DType::kI32, {3}), {}), Error);
  EXPECT_THROW(
      ops::balance_losses(lane, zeros(lane, DType::kF32, {1, 14}), {}, 1, zeros(lane, DType::kF64, {2})),
      Error);
}

}  // namespace
}  // namespace weft
