// The CPU twins: what the fronts in src/ops/*.cpp dispatch to. Arguments are checked already.
#pragma once

#include "core/lane.hpp"
#include "ops/activation.hpp"
#include "ops/attention.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/dropout.hpp"
#include "ops/norm.hpp"
#include "ops/optimizer.hpp"
#include "ops/rope.hpp"

namespace weft::ops {

// c = beta · c + a · b (+ bias on columns); forms as in gemm.hpp: kNT a [m, k], b [n, k]; kNN a [m, k], b [k,
// n]; kTN a [k, m], b [k, n]. The tensors are matrices of rows() rows.
struct Gemm {
  enum class Form { kNT, kNN, kTN };
  Form form;
  Tensor a, b, bias, c;
  float beta = 0;

  std::int64_t m() const { return form == Form::kTN ? a.columns() : a.rows(); }
  std::int64_t n() const { return form == Form::kNT ? b.rows() : b.columns(); }
  std::int64_t k() const { return form == Form::kTN ? a.rows() : a.columns(); }
};

namespace cpu {

// Bytes of scratch; a function of shapes, dtypes and the number of workers.
std::int64_t gemm_scratch(const Lane& lane, const Gemm& g);
void gemm(Lane& lane, const Gemm& g, const Tensor& scratch);

// Sums over rows go through partial sums of fixed row ranges: scratch [row_chunks(rows), columns].
std::int64_t row_chunks(std::int64_t rows);
void bias_gradient(Lane& lane, const Tensor& dy, const Tensor& db, float beta, const Tensor& scratch);

void fill(Lane& lane, const Tensor& x, double value);
void copy(Lane& lane, const Tensor& from, const Tensor& to);
void add_in_place(Lane& lane, const Tensor& x, const Tensor& y);
void scale_in_place(Lane& lane, const Tensor& x, double factor);
// partial [pieces of 4096] f64
void sum(Lane& lane, const Tensor& x, bool squares, const Tensor& partial, const Tensor& out);
void find_nonfinite(Lane& lane, const Tensor& x, std::int64_t& index);

void activation(Lane& lane, Activation kind, const Tensor& x, const Tensor& y);
void activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x, const Tensor& dx);
void gated_activation(Lane& lane, Activation kind, const Tensor& x, const Tensor& y);
void gated_activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                               const Tensor& dx);

// bias undefined and mean undefined: RMSNorm.
void norm(Lane& lane, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
          const NormResult& result);
// scratch [row_chunks, h] for the weight and, for LayerNorm, as much again for the bias.
void norm_backward(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                   const Tensor& rstd, const Tensor& dresidual, const NormGradients& gradients,
                   const Tensor& dx, const Tensor& scratch);

void rope_in_place(Lane& lane, const Tensor& x, const RopeTable& table, const Tensor& positions, int head_dim,
                   bool inverse);

void bias_dropout_add(Lane& lane, const Tensor& x, const Tensor& bias, const Tensor& residual,
                      const DropoutSite& site, const Tensor& out);
void dropout_backward(Lane& lane, const Tensor& dout, const DropoutSite& site, const Tensor& dx);

void embedding(Lane& lane, const Tensor& ids, const Tensor& table, std::int64_t first_row, const Tensor& y);
void embedding_backward(Lane& lane, const Tensor& dy, const Tensor& ids, const Tensor& dtable,
                        std::int64_t first_row, float beta);
void add_positions(Lane& lane, const Tensor& x, const Tensor& table, std::int64_t first_position);
void add_positions_backward(Lane& lane, const Tensor& dy, const Tensor& dtable, std::int64_t first_position,
                            float beta);

void cross_entropy_local(Lane& lane, const Tensor& logits, const Tensor& labels,
                         const CrossEntropyOptions& options, const CrossEntropyLocal& local);
void cross_entropy_rescale(Lane& lane, const CrossEntropyLocal& local, const Tensor& max);
void cross_entropy_finish(Lane& lane, const Tensor& max, const Tensor& sums, const Tensor& labels,
                          const CrossEntropyOptions& options, const CrossEntropyResult& result);
void cross_entropy_backward(Lane& lane, const Tensor& logits, const Tensor& lse, const Tensor& labels,
                            const CrossEntropyOptions& options, double scale);

std::int64_t attention_scratch(const Lane& lane, const Tensor& q, const Tensor& k,
                               const AttentionOptions& options);
void attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
               const AttentionResult& result, const Tensor& scratch);
std::int64_t attention_backward_scratch(const Lane& lane, const Tensor& q, const Tensor& k,
                                        const AttentionOptions& options);
void attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionResult& forward, const AttentionOptions& options, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, const Tensor& scratch);

void adamw(Lane& lane, const AdamWStep& step, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const Tensor& weight);
void sgd(Lane& lane, const SgdStep& step, const Tensor& master, const Tensor& buffer, const Tensor& grad,
         const Tensor& weight);

}  // namespace cpu
}  // namespace weft::ops
