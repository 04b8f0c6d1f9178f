// Mixture of experts: which tokens go to which experts, the losses that balance them, moving rows to their
// experts and back, and products with one weight for each expert. Formulas: Shazeer et al. 2017, Fedus et al.
// 2021 (switch loss), Zoph et al. 2022 (z-loss), DeepSeek-AI 2024 (sigmoid scores, groups, expert bias).
//
// n tokens of this rank, k choices of each, E experts, R rows: (token, choice) pairs in the order of their
// experts. Accumulator type: f32, or f64 for f64 models.
#pragma once

#include "core/lane.hpp"
#include "ops/activation.hpp"

namespace weft::ops {

enum class RouterScore {
  kSoftmax,         // of the chosen logits: the k weights of a token add up to 1
  kSoftmaxOverAll,  // over all experts, before the choice
  kSigmoid          // of each logit, divided by their sum over the chosen (+ 1e-20) where k > 1
};

struct RouterOptions {
  int topk = 2;
  RouterScore score = RouterScore::kSoftmax;
  // Experts in this many groups of neighbours, of which the group_topk with the best sums of their best
  // topk / group_topk scores are open to a token; 0: all are.
  int groups = 0, group_topk = 0;
  double scale = 1;  // on the weights
  bool operator==(const RouterOptions&) const = default;
};

struct Routing {
  Tensor probs;    // [n, k] accumulator type: the weight of each choice; 0 where there is none
  Tensor experts;  // [n, k] i32, best first, equal scores by number; −1: none
};

// logits [n, E] in the accumulator type; bias [E] (or undefined) is added to the scores for the choice alone;
// `counted` [n] u8 (or undefined): tokens with 0 have no experts.
Routing route(Lane& lane, const Tensor& logits, const Tensor& bias, const Tensor& counted,
              const RouterOptions& options);
// dlogits [n, E] from dprobs [n, k]; nothing flows through the choice, nor through choices of −1. `routing`
// is what route() returned: a choice that was dropped afterwards has dprobs 0 and still its share in the sum
// that the weights of its token were divided by.
Tensor route_backward(Lane& lane, const Tensor& dprobs, const Tensor& logits, const Routing& routing,
                      const RouterOptions& options);

// What balancing losses need of the tokens of a group, of which there are G: row i belongs to group i mod G
// (G = 1: the whole microbatch; G = b: each sequence of [s, b] rows). Columns of [G, 2E + 2] f64, to be
// summed over all ranks of a microbatch: Σ score of each expert, how often a plain top-k of the scores
// chooses it, the number of tokens, Σ logsumexp². Scores: softmax, or sigmoid divided by its sum (+ 1e-20);
// neither bias nor groups. Tokens that are not counted are left out.
Tensor balance_sums(Lane& lane, const Tensor& logits, const Tensor& counted, std::int64_t groups,
                    const RouterOptions& options);

// Coefficients already multiplied by what the microbatch weighs in the whole loss.
struct BalanceWeights {
  double aux = 0;  // of the mean over non-empty groups of E / (k T²) Σ_e (Σ score · Σ chosen)
  double z = 0;    // of the mean over tokens of logsumexp²
};
// dlogits += the derivative of both losses; sums: of all ranks.
void balance_backward(Lane& lane, const Tensor& logits, const Tensor& counted, const Tensor& sums,
                      const RouterOptions& options, const BalanceWeights& weights, const Tensor& dlogits);
// out [2] f64: out[0] += weight · the aux loss, out[1] += weight · the z-loss, without coefficients.
void balance_losses(Lane& lane, const Tensor& sums, const RouterOptions& options, double weight,
                    const Tensor& out);

// out [E] f64 += how many choices of `experts` [n, k] fell on each expert; dropped ones (−1) on none.
void count_experts(Lane& lane, const Tensor& experts, const Tensor& out);

// Of each expert's choices keeps `capacity`: by_position those with the smallest places, else those with the
// largest weights (equal ones by place, then by choice). The others become −1 with weight 0, in place.
// places [n] i32: the order of tokens.
void drop_over_capacity(Lane& lane, const Routing& routing, const Tensor& places, std::int64_t num_experts,
                        std::int64_t capacity, bool by_position);

struct ExpertOrder {
  Tensor rows;     // [n, k] i32: the row of each pair, −1: none
  Tensor offsets;  // [E + 1] i32: the first row of each expert, and the end
};
// Pairs in the order of expert, then token, then choice. `experts` [n, k] i32. padded_to > 0: each expert has
// this many rows, its pairs first (more are a checked error).
ExpertOrder expert_order(Lane& lane, const Tensor& experts, std::int64_t num_experts,
                         std::int64_t padded_to = 0);

// Experts of [first, first + count) by their numbers there; −1 for all others.
Tensor own_experts(Lane& lane, const Tensor& experts, std::int64_t first, std::int64_t count);

// out [R, h]: out[rows[t, j]] = x[t]; rows that no pair has become 0.
void spread_rows(Lane& lane, const Tensor& x, const Tensor& rows, const Tensor& out);
// [n, h]: Σ_j y[rows[t, j]], in order of j in the accumulator type: the derivative of spread_rows, and its
// inverse up to the sum.
Tensor collect_rows(Lane& lane, const Tensor& y, const Tensor& rows);
// The same for a number of each pair: out [R] from values [n, k], and [n, k] from [R] (0 where rows is −1).
void spread_values(Lane& lane, const Tensor& values, const Tensor& rows, const Tensor& out);
Tensor collect_values(Lane& lane, const Tensor& y, const Tensor& rows);

// Rows [offsets[e], offsets[e + 1]) of x with the weight of expert e. Rows past offsets[E] of a result are 0.
// w [E, out, in] (or the same memory as [E · out, in]); experts without rows are fine.
Tensor grouped_gemm_nt(Lane& lane, const Tensor& x, const Tensor& w, const Tensor& offsets);   // [R, out]
Tensor grouped_gemm_nn(Lane& lane, const Tensor& dy, const Tensor& w, const Tensor& offsets);  // [R, in]
// dw[e] = beta · dw[e] + dyᵀ x over the rows of e, in dw's type: the accumulator type or dy's own; beta is 0
// (writes, zeros for an expert without rows) or 1.
void grouped_gemm_tn_accumulate(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& offsets,
                                const Tensor& dw, float beta);

// y [R, f] = scale [R] · f(x), or with `gated` scale · f(gate) · up, x [R, 2f] = [gate | up]; scale in the
// accumulator type. Rounded once.
Tensor scaled_activation(Lane& lane, Activation kind, bool gated, const Tensor& x, const Tensor& scale);
struct ScaledActivationGradient {
  Tensor dx, dscale;  // like x; [R]
  Tensor y;           // the forward result again
};
ScaledActivationGradient scaled_activation_backward(Lane& lane, Activation kind, bool gated, const Tensor& dy,
                                                    const Tensor& x, const Tensor& scale);

}  // namespace weft::ops
