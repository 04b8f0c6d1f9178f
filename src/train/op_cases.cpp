#include "train/op_cases.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/rng.hpp"
#include "ops/activation.hpp"
#include "ops/attention.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/dropout.hpp"
#include "ops/elementwise.hpp"
#include "ops/embedding.hpp"
#include "ops/gemm.hpp"
#include "ops/norm.hpp"
#include "ops/optimizer.hpp"
#include "ops/rope.hpp"
#include "train/ceilings.hpp"

namespace weft {
namespace {

using Run = std::function<void()>;
using Index = std::int64_t;

Tensor random(Lane& lane, DType dtype, const Shape& shape, double scale = 1) {
  Tensor x = lane.alloc(dtype, shape, "bench operand");
  fill_normal(lane, x, scale);
  return x;
}

// Zipf-distributed: token r as often as 1 / (r + 1), as words of a text are.
Tensor tokens(Lane& lane, Index batch, Index sequence, Index vocabulary) {
  Tensor ids = lane.alloc(DType::kI32, {batch, sequence}, "bench tokens");
  if (lane.meta()) return ids;
  std::vector<std::int32_t> values(static_cast<std::size_t>(batch * sequence));
  const double whole = std::log(static_cast<double>(vocabulary) + 1);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double u = uniform(philox(RandomKey{1}.with("bench tokens"), i)[0]);
    const auto rank = static_cast<Index>(std::exp(u * whole)) - 1;
    values[i] = static_cast<std::int32_t>(std::clamp<Index>(rank, 0, vocabulary - 1));
  }
  ops::copy(lane, Tensor::borrow(values.data(), DType::kI32, ids.shape()), ids);
  return ids;
}

Tensor sample_ids(Lane& lane, Index batch) {
  Tensor ids = lane.alloc(DType::kI64, {batch}, "bench sample ids");
  if (lane.meta()) return ids;
  std::vector<Index> values(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Index>(i);
  ops::copy(lane, Tensor::borrow(values.data(), DType::kI64, ids.shape()), ids);
  return ids;
}

Shape with_columns(const OpShapes& s, Index columns) {
  return {s.sequence, s.batch, columns};
}

Index padded_vocabulary(const ModelConfig& m) {
  const Index unit = m.make_vocab_size_divisible_by;
  return (m.vocab_size + unit - 1) / unit * unit;
}

// Views of one packed tensor, as the model has them.
struct Qkv {
  Tensor q, k, v, qk;
};
Qkv packed(Lane& lane, const OpShapes& s) {
  const Index q = s.model.num_attention_heads * s.model.kv_channels,
              kv = s.model.num_query_groups * s.model.kv_channels;
  const Tensor all = random(lane, s.dtype, with_columns(s, q + 2 * kv));
  return {all.slice_columns(0, q), all.slice_columns(q, kv), all.slice_columns(q + kv, kv),
          all.slice_columns(0, q + kv)};
}

class Cases {
 public:
  explicit Cases(const OpShapes& shapes)
      : s_(shapes),
        m_(shapes.model),
        x_({shapes.sequence, shapes.batch, shapes.model.hidden_size}),
        text_(fmt::format("{}x{}", shapes.tokens(), shapes.model.hidden_size)) {}

  std::vector<OpCase> all() {
    gemms();
    attention();
    norms();
    activations();
    residuals();
    rope();
    embeddings();
    cross_entropy();
    optimizer();
    return std::move(cases_);
  }

 private:
  void add(std::string op, std::string shape, std::function<PreparedOp(Lane&)> prepare) {
    cases_.push_back({std::move(op), std::move(shape), std::move(prepare)});
  }
  void gemms() {
    const Index h = m_.hidden_size, heads = m_.num_attention_heads * m_.kv_channels,
                groups = m_.num_query_groups * m_.kv_channels;
    const bool bias = m_.add_bias_linear;
    if (const LatentConfig& l = m_.latent; l.enabled) {
      const Index n = m_.num_attention_heads;
      if (l.q_lora_rank > 0) linear("q_down", h, l.q_lora_rank, false);
      linear(l.q_lora_rank > 0 ? "q_up" : "q", l.q_lora_rank > 0 ? l.q_lora_rank : h, n * l.query_dim(),
             false);
      linear("kv_down", h, l.kv_lora_rank + l.qk_pos_emb_head_dim, false);
      linear("kv_up", l.kv_lora_rank, n * (l.qk_head_dim + l.v_head_dim), false);
      linear("proj", n * l.v_head_dim, h, false);
    } else {
      linear("qkv", h, heads + 2 * groups, bias || m_.add_qkv_bias);
      linear("proj", heads, h, false);  // its bias is added with the residual
    }
    linear("fc1", h, m_.ffn_hidden_size * (m_.gated ? 2 : 1), bias);
    linear("fc2", m_.ffn_hidden_size, h, false);
    linear("head", h, padded_vocabulary(m_), false);
  }

  // Forward, gradient of the input, gradient of the weight.
  void linear(const std::string& name, Index in, Index out, bool with_bias) {
    const DType dtype = s_.dtype;
    const Shape x = {s_.tokens(), in}, y = {s_.tokens(), out}, w = {out, in};
    const double scale = 1 / std::sqrt(static_cast<double>(in));
    add("gemm", fmt::format("nt {} {}x{}x{}", name, s_.tokens(), out, in), [=](Lane& lane) -> Run {
      const Tensor tx = random(lane, dtype, x), tw = random(lane, dtype, w, scale),
                   b = with_bias ? random(lane, dtype, {out}) : Tensor(), ty = random(lane, dtype, y);
      return [=, &lane] { ops::gemm_nt_into(lane, tx, tw, b, ty); };
    });
    add("gemm", fmt::format("nn {} {}x{}x{}", name, s_.tokens(), in, out), [=](Lane& lane) -> Run {
      const Tensor dy = random(lane, dtype, y), tw = random(lane, dtype, w, scale),
                   dx = random(lane, dtype, x);
      return [=, &lane] { ops::gemm_nn_into(lane, dy, tw, dx); };
    });
    add("gemm", fmt::format("tn {} {}x{}x{} add", name, out, in, s_.tokens()), [=](Lane& lane) -> Run {
      const Tensor dy = random(lane, dtype, y), tx = random(lane, dtype, x),
                   dw = random(lane, accumulator_of(dtype), w);
      return [=, &lane] { ops::gemm_tn_accumulate(lane, dy, tx, dw, 1); };
    });
    if (!with_bias) return;
    add("bias_gradient", fmt::format("{} {}x{}", name, s_.tokens(), out), [=](Lane& lane) -> Run {
      const Tensor dy = random(lane, dtype, y), db = random(lane, accumulator_of(dtype), {out});
      return [=, &lane] { ops::bias_gradient(lane, dy, db, 1); };
    });
  }

  void attention() {
    ops::AttentionOptions options{.head_dim = static_cast<int>(m_.kv_channels),
                                  .scale = 1 / std::sqrt(static_cast<double>(m_.kv_channels))};
    const std::string shape = fmt::format("{}x{} heads {}/{} of {} causal", s_.sequence, s_.batch,
                                          m_.num_attention_heads, m_.num_query_groups, m_.kv_channels);
    add("attention", shape, [s = s_, options](Lane& lane) -> Run {
      const Qkv x = packed(lane, s);
      return [=, &lane] { ops::attention(lane, x.q, x.k, x.v, options); };
    });
    add("attention_backward", shape, [s = s_, options](Lane& lane) -> Run {
      const Qkv x = packed(lane, s), dx = packed(lane, s);
      const ops::AttentionResult forward = ops::attention(lane, x.q, x.k, x.v, options);
      const Tensor dout = random(lane, s.dtype, forward.out.shape());
      return [=, &lane] {
        ops::attention_backward(lane, dout, x.q, x.k, x.v, forward, options, dx.q, dx.k, dx.v);
      };
    });
  }

  void norms() {
    const Shape x = x_;
    const DType dtype = s_.dtype;
    const Index h = m_.hidden_size;
    add("layer_norm", text_, [=](Lane& lane) -> Run {
      const Tensor tx = random(lane, dtype, x), w = random(lane, dtype, {h}), b = random(lane, dtype, {h});
      return [=, &lane] { ops::layer_norm(lane, tx, w, b, 1e-5); };
    });
    add("layer_norm_backward", text_, [=](Lane& lane) -> Run {
      const Tensor tx = random(lane, dtype, x), w = random(lane, dtype, {h}), b = random(lane, dtype, {h}),
                   dy = random(lane, dtype, x), residual = random(lane, dtype, x);
      const ops::NormResult forward = ops::layer_norm(lane, tx, w, b, 1e-5);
      const DType wide = accumulator_of(dtype);
      const ops::NormGradients gradients{random(lane, wide, {h}), random(lane, wide, {h})};
      return [=, &lane] {
        ops::layer_norm_backward(lane, dy, tx, w, forward.mean, forward.rstd, residual, gradients);
      };
    });
    add("rms_norm", text_, [=](Lane& lane) -> Run {
      const Tensor tx = random(lane, dtype, x), w = random(lane, dtype, {h});
      return [=, &lane] { ops::rms_norm(lane, tx, w, 1e-5); };
    });
    add("rms_norm_backward", text_, [=](Lane& lane) -> Run {
      const Tensor tx = random(lane, dtype, x), w = random(lane, dtype, {h}), dy = random(lane, dtype, x),
                   residual = random(lane, dtype, x);
      const ops::NormResult forward = ops::rms_norm(lane, tx, w, 1e-5);
      const ops::NormGradients gradients{random(lane, accumulator_of(dtype), {h}), {}};
      return [=, &lane] { ops::rms_norm_backward(lane, dy, tx, w, forward.rstd, residual, gradients); };
    });
  }

  void activations() {
    const Index f = m_.ffn_hidden_size;
    const Shape one = with_columns(s_, f), two = with_columns(s_, 2 * f);
    const DType dtype = s_.dtype;
    const std::string plain = fmt::format("gelu_tanh {}x{}", s_.tokens(), f),
                      gated = fmt::format("swiglu {}x{}", s_.tokens(), f);
    constexpr ops::Activation kGelu = ops::Activation::kGeluTanh, kSilu = ops::Activation::kSilu;
    add("activation", plain, [=](Lane& lane) -> Run {
      const Tensor x = random(lane, dtype, one);
      return [=, &lane] { ops::activation(lane, kGelu, x); };
    });
    add("activation_backward", plain, [=](Lane& lane) -> Run {
      const Tensor x = random(lane, dtype, one), dy = random(lane, dtype, one);
      return [=, &lane] { ops::activation_backward(lane, kGelu, dy, x); };
    });
    add("activation_again", plain, [=](Lane& lane) -> Run {
      const Tensor x = random(lane, dtype, one), dy = random(lane, dtype, one),
                   db = random(lane, accumulator_of(dtype), {f});
      return [=, &lane] { ops::activation_again(lane, kGelu, dy, x, db, 1); };
    });
    add("activation", gated, [=](Lane& lane) -> Run {
      const Tensor x = random(lane, dtype, two);
      return [=, &lane] { ops::gated_activation(lane, kSilu, x); };
    });
    add("activation_backward", gated, [=](Lane& lane) -> Run {
      const Tensor x = random(lane, dtype, two), dy = random(lane, dtype, one);
      return [=, &lane] { ops::gated_activation_backward(lane, kSilu, dy, x); };
    });
    add("activation_again", gated, [=](Lane& lane) -> Run {
      const Tensor x = random(lane, dtype, two), dy = random(lane, dtype, one);
      return [=, &lane] { ops::gated_activation_again(lane, kSilu, dy, x); };
    });
  }

  void residuals() {
    const Shape x = x_;
    const DType dtype = s_.dtype;
    const Index h = m_.hidden_size, batch = s_.batch;
    for (const double p : {0.0, 0.1}) {
      add("bias_dropout_add", fmt::format("{} p {}", text_, p), [=](Lane& lane) -> Run {
        const Tensor tx = random(lane, dtype, x), b = random(lane, dtype, {h}),
                     residual = random(lane, dtype, x);
        const ops::DropoutSite site{.p = p, .key = RandomKey{1}, .sample_ids = sample_ids(lane, batch)};
        return [=, &lane] { ops::bias_dropout_add(lane, tx, b, residual, site); };
      });
    }
    add("dropout_backward", text_ + " p 0.1", [=](Lane& lane) -> Run {
      const Tensor dy = random(lane, dtype, x);
      const ops::DropoutSite site{.p = 0.1, .key = RandomKey{1}, .sample_ids = sample_ids(lane, batch)};
      return [=, &lane] { ops::dropout_backward(lane, dy, site); };
    });
    add("add_in_place", text_, [=](Lane& lane) -> Run {
      const Tensor a = random(lane, dtype, x), b = random(lane, dtype, x, 1e-3);
      return [=, &lane] { ops::add_in_place(lane, a, b); };
    });
  }

  void rope() {
    const std::string shape = fmt::format("{} heads {}+{} of {}", s_.tokens(), m_.num_attention_heads,
                                          m_.num_query_groups, m_.kv_channels);
    if (m_.kv_channels % 2 != 0) return;
    add("rope", shape, [s = s_](Lane& lane) -> Run {
      const Tensor qk = packed(lane, s).qk;
      // A rotation by one angle, again and again: numbers keep their size.
      const Shape table{s.sequence, s.model.kv_channels / 2};
      const ops::RopeTable angles{lane.alloc(accumulator_of(s.dtype), table, "bench cos"),
                                  lane.alloc(accumulator_of(s.dtype), table, "bench sin")};
      ops::fill(lane, angles.cos, 0.6);
      ops::fill(lane, angles.sin, 0.8);
      const int head = static_cast<int>(s.model.kv_channels);
      return [=, &lane] { ops::rope_in_place(lane, qk, angles, {}, head, false); };
    });
  }

  void embeddings() {
    const Index rows = padded_vocabulary(m_), h = m_.hidden_size, sequence = s_.sequence, batch = s_.batch,
                vocabulary = m_.vocab_size;
    const DType dtype = s_.dtype;
    const Shape x = x_;
    const std::string shape = fmt::format("{} of {}", text_, rows);
    add("embedding", shape, [=](Lane& lane) -> Run {
      const Tensor ids = tokens(lane, batch, sequence, vocabulary), table = random(lane, dtype, {rows, h});
      return [=, &lane] { ops::embedding(lane, ids, table, 0); };
    });
    add("embedding_backward", shape, [=](Lane& lane) -> Run {
      const Tensor ids = tokens(lane, batch, sequence, vocabulary), dy = random(lane, dtype, x),
                   table = random(lane, accumulator_of(dtype), {rows, h});
      return [=, &lane] { ops::embedding_backward(lane, dy, ids, table, 0, 1); };
    });
    add("add_positions", text_, [=](Lane& lane) -> Run {
      const Tensor tx = random(lane, dtype, x), table = random(lane, dtype, {sequence, h}, 1e-3);
      return [=, &lane] { ops::add_positions(lane, tx, table, 0); };
    });
    add("add_positions_backward", text_, [=](Lane& lane) -> Run {
      const Tensor dy = random(lane, dtype, x), table = random(lane, accumulator_of(dtype), {sequence, h});
      return [=, &lane] { ops::add_positions_backward(lane, dy, table, 0, 1); };
    });
  }

  void cross_entropy() {
    const Index columns = padded_vocabulary(m_);
    const ops::CrossEntropyOptions options{.vocabulary = m_.vocab_size};
    const std::string shape = fmt::format("{}x{}", s_.tokens(), columns);
    const auto logits = [s = s_, columns](Lane& lane) {
      return random(lane, s.dtype, with_columns(s, columns));
    };
    const auto labels = [s = s_](Lane& lane) {
      return tokens(lane, s.batch, s.sequence, s.model.vocab_size);
    };
    // What works in place leaves gradients behind: nearly the same number everywhere.
    add("cross_entropy_fused", shape, [=](Lane& lane) -> PreparedOp {
      const Tensor x = logits(lane), y = labels(lane);
      return {[=, &lane] { ops::cross_entropy_fused(lane, x, y, options, 1); },
              [=, &lane] { fill_normal(lane, x); }};
    });
    add("cross_entropy_local", shape, [=](Lane& lane) -> Run {
      const Tensor x = logits(lane), y = labels(lane);
      return [=, &lane] { ops::cross_entropy_local(lane, x, y, options); };
    });
    add("cross_entropy_backward", shape, [=](Lane& lane) -> PreparedOp {
      const Tensor x = logits(lane), y = labels(lane);
      const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, x, y, options);
      const ops::CrossEntropyResult result =
          ops::cross_entropy_finish(lane, local.max, local.sums, y, options);
      return {[=, &lane] { ops::cross_entropy_backward(lane, x, result.lse, y, options, 1); },
              [=, &lane] { fill_normal(lane, x); }};
    });
  }

  void optimizer() {
    const Index n = s_.parameters;
    const DType dtype = s_.dtype, wide = accumulator_of(dtype);
    const std::string shape = fmt::format("{} parameters", n);
    add("adamw", shape, [=](Lane& lane) -> Run {
      const Tensor gradient = random(lane, wide, {n}, 1e-3);
      ops::AdamWTensors t{.master = random(lane, wide, {n}, 0.02),
                          .exp_avg = random(lane, wide, {n}, 1e-3),
                          .exp_avg_sq = lane.alloc(wide, {n}, "bench operand"),
                          .gradient = gradient};
      ops::fill(lane, t.exp_avg_sq, 1e-6);  // squares have no sign
      t.weight = dtype == wide ? t.master : random(lane, dtype, {n}, 0.02);
      const ops::FlatPieces pieces(lane, {{.elems = n, .tag = 1}});
      return [=, &lane] { ops::adamw(lane, {.lr = 1e-5, .weight_decay = 0.1, .t = 1000}, pieces, t); };
    });
    add("sums_of_squares", shape, [=](Lane& lane) -> Run {
      const Tensor x = random(lane, wide, {n}, 1e-3), out = lane.alloc(DType::kF64, {1}, "bench sum");
      const ops::FlatPieces pieces(lane, {{.elems = n, .tag = 0}});
      return [=, &lane] { ops::sums_of_squares(lane, pieces, x, out); };
    });
  }

  const OpShapes s_;
  const ModelConfig m_;
  const Shape x_;
  const std::string text_;
  std::vector<OpCase> cases_;
};

}  // namespace

std::vector<OpCase> op_cases(const OpShapes& shapes) {
  return Cases(shapes).all();
}

std::vector<std::string> op_names() {
  return {"gemm",          "bias_gradient",    "attention", "norm",           "layer_norm", "rms_norm",
          "activation",    "bias_dropout_add", "dropout",   "add_in_place",   "rope",       "embedding",
          "add_positions", "cross_entropy",    "adamw",     "sums_of_squares"};
}

bool op_matches(const std::string& op, const std::string& name) {
  return ("_" + op + "_").find("_" + name + "_") != std::string::npos;
}

}  // namespace weft
