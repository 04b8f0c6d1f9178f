#include "ops/optimizer.hpp"

#include "ops/cuda/views.hpp"

namespace weft {
namespace {

using namespace test;

class CudaOptimizer : public OnGpuViews {
 protected:
  static constexpr std::int64_t kOwned = 120000, kAll = 160000;

  // Starts aligned and not, owned and offset apart by a multiple of a vector and not, more and less than a
  // chunk.
  static std::vector<ops::FlatPiece> pieces() {
    return {{.owned = 0, .offset = 64, .elems = 40000, .tag = 1},
            {.owned = 40000, .offset = 40065, .elems = 999, .tag = 0},
            {.owned = 41001, .offset = 50000, .elems = 33001, .tag = 1},
            {.owned = 75001, .offset = 90001, .elems = 1, .tag = 1},
            {.owned = 75003, .offset = 90003, .elems = 17, .tag = 0},
            {.owned = 76000, .offset = 91000, .elems = 0, .tag = 1},
            {.owned = 76000, .offset = 92000, .elems = 32768, .tag = 7}};
  }
  // Where weight and master are the same memory.
  static std::vector<ops::FlatPiece> whole_pieces() {
    std::vector<ops::FlatPiece> list = pieces();
    for (ops::FlatPiece& p : list) p.owned = p.offset;
    return list;
  }

  struct State {
    Tensor p, m, v, g, w;
  };
  // v is what squares are. Small weights: the update is the larger part of them.
  State start(DType master, DType weight, std::int64_t owned) {
    State s{random(cpu(), master, {owned}, 1, 0.01), random(cpu(), master, {owned}, 2),
            random(cpu(), master, {owned}, 3), random(cpu(), master, {kAll}, 4),
            random(cpu(), weight, {kAll}, 5)};
    for (std::int64_t i = 0; i < owned; ++i) set_element(s.v, i, std::fabs(element(s.v, i)) * 0.3);
    return s;
  }
  State on_gpu(const State& s) { return {to_gpu(s.p), to_gpu(s.m), to_gpu(s.v), to_gpu(s.g), to_gpu(s.w)}; }
  State reference(const State& s) { return {wide(s.p), wide(s.m), wide(s.v), wide(s.g), wide(s.w)}; }
};

TEST_F(CudaOptimizer, AdamW) {
  for (const DType master : {DType::kF32, DType::kF64}) {
    for (const DType weight : kFloating) {
      for (const std::int64_t t : {1, 3, 1000}) {
        const ops::AdamWStep step{0.01, 0.9, 0.95, 1e-8, 0.1, t, 0.25};
        const State first = start(master, weight, kOwned);
        const State a = on_gpu(first), b = on_gpu(first), r = reference(a);
        const ops::FlatPieces list(gpu(), pieces()), cpu_list(cpu(), pieces());
        ops::adamw(cpu(), step, cpu_list, {r.p, r.m, r.v, r.g, r.w});
        ops::adamw(gpu(), step, list, {a.p, a.m, a.v, a.g, a.w});
        expect_close(a.p, r.p, rounding(master), "master");
        expect_close(a.m, r.m, rounding(master), "exp_avg");
        expect_close(a.v, r.v, rounding(master), "exp_avg_sq");
        expect_close(a.w, r.w, std::max(rounding(weight), rounding(master)), "weight");
        EXPECT_TRUE(same_on_gpu(a.g, b.g));
        // Nothing beside the pieces is written.
        const Tensor before = to_cpu(b.w), after = to_cpu(a.w), p0 = to_cpu(b.p), p1 = to_cpu(a.p);
        EXPECT_TRUE(same_bits(before.slice(0, 64), after.slice(0, 64)));
        EXPECT_TRUE(same_bits(before.slice(40064, 1), after.slice(40064, 1)));
        EXPECT_TRUE(same_bits(before.slice(90002, 1), after.slice(90002, 1)));
        EXPECT_TRUE(same_bits(before.slice(124768, kAll - 124768), after.slice(124768, kAll - 124768)));
        EXPECT_TRUE(same_bits(p0.slice(40999, 2), p1.slice(40999, 2)));
        EXPECT_TRUE(same_bits(p0.slice(75002, 1), p1.slice(75002, 1)));
        ops::adamw(gpu(), step, list, {b.p, b.m, b.v, b.g, b.w});
        EXPECT_TRUE(same_on_gpu(a.p, b.p) && same_on_gpu(a.m, b.m) && same_on_gpu(a.v, b.v) &&
                    same_on_gpu(a.w, b.w));
      }
    }
    // The weight is the master.
    const ops::AdamWStep step{0.01, 0.9, 0.95, 1e-8, 0.1, 2, 0.25};
    const State a = on_gpu(start(master, master, kAll)), r = reference(a);
    ops::adamw(cpu(), step, ops::FlatPieces(cpu(), whole_pieces()), {r.p, r.m, r.v, r.g, r.p});
    ops::adamw(gpu(), step, ops::FlatPieces(gpu(), whole_pieces()), {a.p, a.m, a.v, a.g, a.p});
    expect_close(a.p, r.p, rounding(master), "master as weight");
  }
}

TEST_F(CudaOptimizer, OneTensorOfAllSizes) {
  for (const std::int64_t n : {0, 1, 3, 17, 129, 1025, 40000}) {
    for (const DType weight : {DType::kBF16, DType::kF16, DType::kF32}) {
      const State a = on_gpu(start(DType::kF32, weight, n + 1)), r = reference(a);
      const auto cut = [&](const Tensor& x) { return x.slice(1, n); };  // not aligned
      const ops::AdamWStep step{0.01, 0.9, 0.95, 1e-8, 0.1, 3, 0.25};
      ops::adamw(gpu(), step, one_piece(gpu(), cut(a.p)), {cut(a.p), cut(a.m), cut(a.v), cut(a.g), cut(a.w)});
      ops::adamw(cpu(), step, one_piece(cpu(), cut(r.p)), {cut(r.p), cut(r.m), cut(r.v), cut(r.g), cut(r.w)});
      expect_close(a.p, r.p, rounding(DType::kF32), "master");
      expect_close(a.w, r.w, rounding(weight), "weight");
    }
  }
}

TEST_F(CudaOptimizer, AdamWWithoutEpsilonLeavesUntouchedWeightsAlone) {
  const auto on = [&](const Values& v) { return to_gpu(make(cpu(), DType::kF32, {8}, v)); };
  const Tensor p = on(Values(8, 0.5)), m = on(Values(8, 0)), v = on(Values(8, 0)),
               g = on({0, 1, 0, 0, 0, 0, 0, 0});
  ops::adamw(gpu(), {1e-3, 0.9, 0.999, 0, 0, 1, 1}, one_piece(gpu(), p), {p, m, v, g, p});
  const Tensor got = to_cpu(p);
  EXPECT_EQ(element(got, 0), 0.5);
  EXPECT_NEAR(element(got, 1), 0.499, 1e-7);
}

TEST_F(CudaOptimizer, Sgd) {
  for (const DType master : {DType::kF32, DType::kF64}) {
    for (const DType weight : kFloating) {
      for (const bool with_buffer : {false, true}) {
        for (const bool is_first : {false, true}) {
          const ops::SgdStep step{0.1, with_buffer ? 0.9 : 0.0, 0.01, is_first, 2};
          State first = start(master, weight, kOwned);
          // The buffer is not read at first; beside the pieces it stays what it was.
          if (is_first) ops::fill(cpu(), first.m, std::nan(""));
          const State a = on_gpu(first), b = on_gpu(first), r = reference(a);
          const auto buffer = [&](const State& s) { return with_buffer ? s.m : Tensor(); };
          const ops::FlatPieces list(gpu(), pieces());
          ops::sgd(cpu(), step, ops::FlatPieces(cpu(), pieces()), {r.p, buffer(r), r.g, r.w});
          ops::sgd(gpu(), step, list, {a.p, buffer(a), a.g, a.w});
          expect_close(a.p, r.p, rounding(master), "master");
          expect_close(a.w, r.w, std::max(rounding(weight), rounding(master)), "weight");
          if (with_buffer) {
            for (const ops::FlatPiece& p : pieces()) {
              expect_close(a.m.slice(p.owned, p.elems), r.m.slice(p.owned, p.elems), rounding(master),
                           "buffer");
            }
          }
          ops::sgd(gpu(), step, list, {b.p, buffer(b), b.g, b.w});
          EXPECT_TRUE(same_on_gpu(a.p, b.p) && same_on_gpu(a.w, b.w));
        }
      }
    }
  }
}

TEST_F(CudaOptimizer, NoPieces) {
  const State a = on_gpu(start(DType::kF32, DType::kBF16, 8));
  const Tensor before = copy_of(a.p);
  const ops::FlatPieces none(gpu(), {});
  ops::adamw(gpu(), {}, none, {a.p, a.m, a.v, a.g, a.w});
  ops::sgd(gpu(), {}, none, {a.p, a.m, a.g, a.w});
  EXPECT_TRUE(same_on_gpu(a.p, before));
}

}  // namespace
}  // namespace weft
