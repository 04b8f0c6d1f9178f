// Against results of torch in float64 (tests/golden/ops): the double twins within rounding, float within the
// tolerances of the golden data.
#include "io/safetensors.hpp"
#include "ops/activation.hpp"
#include "ops/attention.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/norm.hpp"
#include "ops/optimizer.hpp"
#include "ops/rope.hpp"
#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

struct Golden {
  explicit Golden(const std::string& name)
      : file(std::string(WEFT_SOURCE_DIR) + "/tests/golden/ops/" + name + "/tensors.safetensors") {}
  Values operator[](const std::string& name) const { return values_of(file.get(name)); }
  Tensor in(Lane& lane, DType dtype, const std::string& name) const {
    const Tensor x = file.get(name);
    return make(lane, dtype, x.shape(), values_of(x));
  }
  SafetensorsFile file;
};

// Calls body(dtype, tolerance) for double and float.
void for_precisions(double float_tolerance, const std::function<void(DType, double)>& body) {
  body(DType::kF64, 1e-12);
  body(DType::kF32, float_tolerance);
}

TEST(Golden, Activations) {
  const Golden golden("activations");
  for_precisions(1e-5, [&](DType dtype, double tolerance) {
    Bench bench;
    Lane& lane = bench.lane;
    const Tensor x = golden.in(lane, dtype, "x"), dy = golden.in(lane, dtype, "dy");
    using ops::Activation;
    for (const Activation kind : {Activation::kGeluTanh, Activation::kGeluErf, Activation::kSilu,
                                  Activation::kSquaredRelu, Activation::kQuickGelu}) {
      const std::string name = ops::name_of(kind);
      expect_near(ops::activation(lane, kind, x), golden[name + ".y"], tolerance, name);
      expect_near(ops::activation_backward(lane, kind, dy, x), golden[name + ".dx"], tolerance, name + " dx");
    }
    const Tensor dy_gated = golden.in(lane, dtype, "dy_gated");
    for (const auto& [name, kind] :
         std::vector<std::pair<std::string, Activation>>{{"swiglu", Activation::kSilu},
                                                         {"geglu_tanh", Activation::kGeluTanh},
                                                         {"geglu_erf", Activation::kGeluErf}}) {
      expect_near(ops::gated_activation(lane, kind, x), golden[name + ".y"], tolerance, name);
      expect_near(ops::gated_activation_backward(lane, kind, dy_gated, x), golden[name + ".dx"], tolerance,
                  name + " dx");
    }
  });
}

TEST(Golden, Norms) {
  const Golden golden("norms");
  for_precisions(1e-5, [&](DType dtype, double tolerance) {
    Bench bench;
    Lane& lane = bench.lane;
    const Tensor x = golden.in(lane, dtype, "x"), dy = golden.in(lane, dtype, "dy");
    const Tensor w = golden.in(lane, dtype, "w"), b = golden.in(lane, dtype, "b");
    const ops::NormGradients g{zeros(lane, dtype, {40}), zeros(lane, dtype, {40}), 1};
    const ops::NormResult rms = ops::rms_norm(lane, x, w, 1e-5);
    expect_near(rms.y, golden["rmsnorm.y"], tolerance, "rms y");
    expect_near(ops::rms_norm_backward(lane, dy, x, w, rms.rstd, {}, g), golden["rmsnorm.dx"], tolerance,
                "rms dx");
    expect_near(g.weight, golden["rmsnorm.dw"], tolerance, "rms dw");
    const ops::NormGradients g2{zeros(lane, dtype, {40}), zeros(lane, dtype, {40}), 1};
    const ops::NormResult layer = ops::layer_norm(lane, x, w, b, 1e-5);
    expect_near(layer.y, golden["layernorm.y"], tolerance, "layer y");
    expect_near(ops::layer_norm_backward(lane, dy, x, w, layer.mean, layer.rstd, {}, g2),
                golden["layernorm.dx"], tolerance, "layer dx");
    expect_near(g2.weight, golden["layernorm.dw"], tolerance, "layer dw");
    expect_near(g2.bias, golden["layernorm.db"], tolerance, "layer db");
  });
}

// The golden layout [B, S, ...] and ours [S, B, ...]: rows of `width` elements change places.
Values swap_first_two(const Values& x, std::size_t first, std::size_t second) {
  const std::size_t width = x.size() / (first * second);
  Values y(x.size());
  for (std::size_t i = 0; i < first; ++i) {
    for (std::size_t j = 0; j < second; ++j) {
      std::copy_n(x.begin() + static_cast<std::ptrdiff_t>((i * second + j) * width), width,
                  y.begin() + static_cast<std::ptrdiff_t>((j * first + i) * width));
    }
  }
  return y;
}

TEST(Golden, Rope) {
  const Golden golden("rope");
  const Values ids = golden["position_ids"], inv_freq = golden["inv_freq"];
  for_precisions(1e-5, [&](DType dtype, double tolerance) {
    Bench bench;
    Lane& lane = bench.lane;
    const std::int64_t positions = static_cast<std::int64_t>(*std::max_element(ids.begin(), ids.end())) + 1;
    ops::RopeTable table{zeros(lane, dtype, {positions, 8}), zeros(lane, dtype, {positions, 8}), false};
    for (std::int64_t p = 0; p < positions; ++p) {
      for (std::int64_t i = 0; i < 8; ++i) {
        const double angle = static_cast<double>(p) * inv_freq[static_cast<std::size_t>(i)];
        set_element(table.cos, p * 8 + i, std::cos(angle));
        set_element(table.sin, p * 8 + i, std::sin(angle));
      }
    }
    const Tensor rows = make(lane, DType::kI32, {7, 2}, swap_first_two(ids, 2, 7));
    for (const bool interleaved : {false, true}) {
      table.interleaved = interleaved;
      const std::string name = interleaved ? "interleaved" : "half";
      const Tensor x = make(lane, dtype, {7, 2, 48}, swap_first_two(golden["x"], 2, 7));
      ops::rope_in_place(lane, x, table, rows, 16, false);
      expect_near(x, swap_first_two(golden[name + ".y"], 2, 7), tolerance, name);
      const Tensor dx = make(lane, dtype, {7, 2, 48}, swap_first_two(golden["dy"], 2, 7));
      ops::rope_in_place(lane, dx, table, rows, 16, true);
      expect_near(dx, swap_first_two(golden[name + ".dx"], 2, 7), tolerance, name + " dx");
    }
  });
}

// What a case of the golden data adds to causal attention with grouped queries.
void expect_attention(const std::string& name, const std::function<void(ops::AttentionOptions&)>& add = {}) {
  const Golden golden(name);
  for_precisions(2e-5, [&](DType dtype, double tolerance) {
    Bench bench;
    Lane& lane = bench.lane;
    const auto load = [&](const char* tensor, std::int64_t width) {
      return make(lane, dtype, {11, 2, width}, swap_first_two(golden[tensor], 2, 11));
    };
    const Tensor q = load("q", 32), k = load("k", 16), v = load("v", 16), dout = load("do", 32);
    ops::AttentionOptions options;
    options.head_dim = 8;
    options.scale = 0.35355339059327373;
    if (add) add(options);
    const bool sinks = golden.file.contains("sinks");
    if (sinks) options.sinks = golden.in(lane, dtype, "sinks");
    const ops::AttentionResult r = ops::attention(lane, q, k, v, options);
    expect_near(r.out, swap_first_two(golden["o"], 2, 11), tolerance, name + " out");
    expect_near(r.lse, golden["lse"], tolerance, name + " lse");
    const Tensor dq = zeros(lane, dtype, q.shape()), dk = zeros(lane, dtype, k.shape()),
                 dv = zeros(lane, dtype, v.shape()), dsinks = sinks ? zeros(lane, dtype, {4}) : Tensor();
    ops::attention_backward(lane, dout, q, k, v, r, options, dq, dk, dv, dsinks);
    expect_near(dq, swap_first_two(golden["dq"], 2, 11), tolerance, name + " dq");
    expect_near(dk, swap_first_two(golden["dk"], 2, 11), tolerance, name + " dk");
    expect_near(dv, swap_first_two(golden["dv"], 2, 11), tolerance, name + " dv");
    if (sinks) expect_near(dsinks, golden["dsinks"], tolerance, name + " dsinks");
  });
}

TEST(Golden, CausalAttentionWithGroupedQueries) {
  expect_attention("attention_causal_gqa");
}

TEST(Golden, AttentionInAWindow) {
  expect_attention("attention_sliding_window", [](ops::AttentionOptions& o) { o.window = 4; });
}

TEST(Golden, AttentionWithCappedScores) {
  expect_attention("attention_softcap", [](ops::AttentionOptions& o) { o.soft_cap = 5; });
}

TEST(Golden, AttentionWithSinks) {
  expect_attention("attention_sinks");
}

TEST(Golden, AttentionWithinPackedDocuments) {
  Bench bench;
  const Golden golden("attention_packed_docs");
  const Values id = golden["doc_id"];  // [2, 11]
  Values first(id.size());
  for (std::size_t i = 0; i < id.size(); ++i) {
    first[i] = i % 11 > 0 && id[i] == id[i - 1] ? first[i - 1] : static_cast<double>(i % 11);
  }
  const Tensor first_keys = make(bench.lane, DType::kI32, {2, 11}, first);
  expect_attention("attention_packed_docs", [&](ops::AttentionOptions& o) { o.first_keys = first_keys; });
}

struct Loss {
  Values losses, lse, dlogits;
};

// One sequence of 12 tokens; row weights of the gradient are applied afterwards, since `scale` is one number.
Loss cross_entropy(Lane& lane, const Tensor& logits, const Tensor& labels,
                   const ops::CrossEntropyOptions& options) {
  const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, logits, labels, options);
  const ops::CrossEntropyResult r = ops::cross_entropy_finish(lane, local.max, local.sums, labels, options);
  ops::cross_entropy_backward(lane, logits, r.lse, labels, options, 1);
  return {values_of(r.losses), values_of(r.lse), values_of(logits)};
}

TEST(Golden, CrossEntropy) {
  const Golden golden("cross_entropy");
  const Values row_weight = golden["grad_loss"], mask = golden["loss_mask"], label_values = golden["labels"];
  for_precisions(1e-5, [&](DType dtype, double tolerance) {
    Bench bench;
    Lane& lane = bench.lane;
    const Tensor labels = make(lane, DType::kI32, {1, 12}, label_values);
    const auto weighted = [&](Values gradient, const Values& weight) {
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] *= weight[i / 50];
      return gradient;
    };
    for (const std::string alpha : {"0.0", "0.1", "0.23"}) {
      ops::CrossEntropyOptions options;
      options.vocabulary = 50;
      options.label_smoothing = std::stod(alpha);
      const Loss r = cross_entropy(lane, golden.in(lane, dtype, "logits"), labels, options);
      const std::string name = "ls" + alpha + ".megatron";
      expect_near(r.losses, golden[name + ".loss"], tolerance, name);
      expect_near(weighted(r.dlogits, row_weight), golden[name + ".dlogits"], tolerance, name + " dlogits");
    }
    ops::CrossEntropyOptions options;
    options.vocabulary = 50;
    options.z_loss = 1e-3;
    const Loss with_z = cross_entropy(lane, golden.in(lane, dtype, "logits"), labels, options);
    options.z_loss = 0;
    const Loss plain = cross_entropy(lane, golden.in(lane, dtype, "logits"), labels, options);
    Values z(12), dz(600);
    for (std::size_t i = 0; i < 12; ++i) z[i] = with_z.losses[i] - plain.losses[i];
    for (std::size_t i = 0; i < 600; ++i) dz[i] = with_z.dlogits[i] - plain.dlogits[i];
    expect_near(z, golden["zloss.per_token"], tolerance * 10, "z-loss");
    expect_near(with_z.lse, golden["zloss.lse"], tolerance, "lse");
    expect_near(weighted(dz, row_weight), golden["zloss.dlogits"], tolerance * 10, "z-loss dlogits");
    // Masked: ignored labels, and the mean over the others.
    Values masked_labels = label_values;
    double count = 0, total = 0;
    for (std::size_t i = 0; i < 12; ++i) {
      count += mask[i];
      if (mask[i] == 0) masked_labels[i] = -100;
    }
    options.z_loss = 1e-3;
    const Loss masked = cross_entropy(lane, golden.in(lane, dtype, "logits"),
                                      make(lane, DType::kI32, {1, 12}, masked_labels), options);
    for (const double l : masked.losses) total += l / count;
    expect_near(Values{total}, golden["masked_mean_nll_plus_z.loss"], tolerance, "masked mean");
    expect_near(weighted(masked.dlogits, Values(12, 1 / count)), golden["masked_mean_nll_plus_z.dlogits"],
                tolerance, "masked dlogits");
  });
}

TEST(Golden, Optimizers) {
  const Golden golden("optimizers");
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    const double tolerance = dtype == DType::kF64 ? 1e-12 : 1e-6;
    const std::string twin = dtype == DType::kF64 ? "" : "_f32";
    for (const std::string name : {"p0", "p1"}) {
      Bench bench;
      Lane& lane = bench.lane;
      const std::int64_t n = golden.file.get("init." + name).elems();
      const Tensor adam = golden.in(lane, dtype, "init." + name).view({n});
      const Tensor sgd = golden.in(lane, dtype, "init." + name).view({n});
      const Tensor m = zeros(lane, dtype, {n}), v = zeros(lane, dtype, {n});
      const Tensor buffer = constant(lane, dtype, {n}, std::nan("")), weight = zeros(lane, DType::kBF16, {n});
      for (int t = 0; t < 6; ++t) {
        const std::string step = ".step" + std::to_string(t) + "." + name;
        const Tensor grad = golden.in(lane, dtype, "grad" + step).view({n});
        // The scale of the gradient is folded in: half of a doubled gradient is the gradient.
        for (std::int64_t i = 0; i < n; ++i) set_element(grad, i, 2 * element(grad, i));
        ops::adamw(lane, {0.003, 0.9, 0.95, 1e-8, 0.1, t + 1, 0.5}, one_piece(lane, adam),
                   {adam, m, v, grad, weight});
        expect_near(adam, golden["adamw" + twin + step], tolerance, "adamw" + step);
        for (std::int64_t i = 0; i < n; ++i) {
          EXPECT_EQ(element(weight, i),
                    static_cast<double>(static_cast<float>(bf16(static_cast<float>(element(adam, i))))));
        }
        ops::sgd(lane, {0.003, 0.9, 0.1, t == 0, 0.5}, one_piece(lane, sgd), {sgd, buffer, grad, sgd});
        expect_near(sgd, golden["sgd_momentum" + twin + step], tolerance, "sgd" + step);
      }
      expect_near(m, golden["adamw" + twin + ".state.exp_avg." + name], tolerance, "exp_avg");
      expect_near(v, golden["adamw" + twin + ".state.exp_avg_sq." + name], tolerance, "exp_avg_sq");
      expect_near(buffer, golden["sgd_momentum" + twin + ".state.momentum_buffer." + name], tolerance,
                  "momentum");
    }
  }
}

}  // namespace
}  // namespace weft
