// A layer of experts on one GPU: router, rows to experts, gated products, rows back, and all of it backwards,
// as recorded work. Beside it the six grouped products alone, and dense ones of as many operations.
//
//   moe_layer_bench [--experts 128] [--topk 8] [--hidden 2048] [--ffn 768] [--tokens 8192] [--gradients
//   bf16|f32]
//                   [--rounds 5] [--repeat 20] [--paced] [--profile]
//
// Prints for each round the times in milliseconds; --paced waits for a line of standard input before each.
// Weight gradients are written (beta 0). Tokens and weights are normal numbers.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/gpu.hpp"
#include "ops/device_tools.hpp"
#include "ops/elementwise.hpp"
#include "ops/gemm.hpp"
#include "ops/moe.hpp"
#include "ops/normal.hpp"

namespace weft {
namespace {

using Index = std::int64_t;

struct Sizes {
  Index experts = 128, topk = 8, hidden = 2048, ffn = 768, tokens = 8192;
  Index rows() const { return tokens * topk; }
  double forward_flops() const { return 6.0 * static_cast<double>(rows() * hidden * ffn); }
};

Tensor normals(Lane& lane, const Shape& shape, double scale) {
  constexpr Index kBlock = 65521;  // prime: no row begins as another one
  Tensor x = lane.alloc(DType::kBF16, shape, "bench");
  const Index n = x.elems(), block = std::min(n, kBlock);
  const Tensor flat = x.view({n});
  const RandomKey key = RandomKey{1}.with(static_cast<std::uint64_t>(lane.arena.allocations()));
  ops::fill_normal(lane, flat.slice(0, block), key, scale, {});
  for (Index have = block; have < n;) {
    const Index more = std::min(have, n - have);
    ops::copy(lane, flat.slice(0, more), flat.slice(have, more));
    have += more;
  }
  return x;
}

class Layer {
 public:
  Layer(Lane& lane, const Sizes& s, DType gradients)
      : lane_(lane),
        s_(s),
        options_{.topk = static_cast<int>(s.topk)},
        x_(lane.alloc(DType::kBF16, {s.tokens, s.hidden}, "bench")),
        dout_(normals(lane, {s.tokens, s.hidden}, 0.1)),
        router_(normals(lane, {s.experts, s.hidden}, 0.02)),
        w1_(normals(lane, {s.experts * 2 * s.ffn, s.hidden}, 0.02)),
        w2_(normals(lane, {s.experts * s.hidden, s.ffn}, 0.02)),
        drouter_(lane.alloc(DType::kF32, router_.shape(), "bench")),
        dw1_(lane.alloc(gradients, w1_.shape(), "bench")),
        dw2_(lane.alloc(gradients, w2_.shape(), "bench")) {
    ops::fill_normal(lane, x_.view({x_.elems()}), RandomKey{7}, 1,
                     {});  // every token another: they choose at random
  }

  void forward() {
    logits_ = lane_.alloc(DType::kF32, {s_.tokens, s_.experts}, "bench");
    ops::gemm_nt_into(lane_, x_, router_, {}, logits_);
    routing_ = ops::route(lane_, logits_, {}, {}, options_);
    order_ = ops::expert_order(lane_, routing_.experts, s_.experts);
    rows_ = lane_.alloc(DType::kBF16, {s_.rows(), s_.hidden}, "bench");
    ops::spread_rows(lane_, x_, order_.rows, rows_);
    scale_ = lane_.alloc(DType::kF32, {s_.rows()}, "bench");
    ops::spread_values(lane_, routing_.probs, order_.rows, scale_);
    h_ = ops::grouped_gemm_nt(lane_, rows_, w1_, order_.offsets);
    const Tensor y = ops::grouped_gemm_nt(
        lane_, ops::scaled_activation(lane_, ops::Activation::kSilu, true, h_, scale_), w2_, order_.offsets);
    out_ = ops::collect_rows(lane_, y, order_.rows);
  }
  void backward() {
    const Tensor dy = lane_.alloc(DType::kBF16, {s_.rows(), s_.hidden}, "bench");
    ops::spread_rows(lane_, dout_, order_.rows, dy);
    const ops::ScaledActivationGradient d =
        ops::scaled_activation_backward(lane_, ops::Activation::kSilu, true,
                                        ops::grouped_gemm_nn(lane_, dy, w2_, order_.offsets), h_, scale_);
    const Tensor dx_rows = ops::grouped_gemm_nn(lane_, d.dx, w1_, order_.offsets);
    ops::grouped_gemm_tn_accumulate(lane_, dy, d.y, order_.offsets, dw2_, 0);
    ops::grouped_gemm_tn_accumulate(lane_, d.dx, rows_, order_.offsets, dw1_, 0);
    dx_ = ops::collect_rows(lane_, dx_rows, order_.rows);
    const Tensor dprobs = ops::collect_values(lane_, d.dscale, order_.rows);
    const Tensor dlogits = ops::cast(lane_, ops::route_backward(lane_, dprobs, logits_, routing_, options_),
                                     DType::kBF16, "bench");
    ops::add_in_place(lane_, dx_, ops::gemm_nn(lane_, dlogits, router_));
    ops::gemm_tn_accumulate(lane_, dlogits, x_, drouter_, 0);
  }
  void products(bool back) {
    const Tensor h = ops::grouped_gemm_nt(lane_, rows_, w1_, order_.offsets);
    const Tensor a = h.slice_columns(0, s_.ffn), y = ops::grouped_gemm_nt(lane_, a, w2_, order_.offsets);
    if (!back) return;
    ops::grouped_gemm_nn(lane_, y, w2_, order_.offsets);
    ops::grouped_gemm_nn(lane_, h, w1_, order_.offsets);
    ops::grouped_gemm_tn_accumulate(lane_, y, a, order_.offsets, dw2_, 0);
    ops::grouped_gemm_tn_accumulate(lane_, h, rows_, order_.offsets, dw1_, 0);
  }
  // The same operations with the weights of one expert for all rows.
  void dense(bool back) {
    const Tensor w1 = w1_.slice(0, 2 * s_.ffn), w2 = w2_.slice(0, s_.hidden);
    const Tensor h = ops::gemm_nt(lane_, rows_, w1), a = h.slice_columns(0, s_.ffn);
    const Tensor y = ops::gemm_nt(lane_, a, w2);
    if (!back) return;
    ops::gemm_nn(lane_, y, w2);
    ops::gemm_nn(lane_, h, w1);
    if (!gradient1_.defined()) {
      gradient1_ = lane_.alloc(DType::kF32, w1.shape(), "bench");
      gradient2_ = lane_.alloc(DType::kF32, w2.shape(), "bench");
    }
    ops::gemm_tn_accumulate(lane_, y, a, gradient2_, 0);
    ops::gemm_tn_accumulate(lane_, h, rows_, gradient1_, 0);
  }
  // The fewest and the most rows of an expert.
  std::pair<int, int> counts() const {
    const auto ends = ops::to_host<std::int32_t>(lane_, order_.offsets);
    int least = ends[1], most = ends[1];
    for (std::size_t e = 1; e < ends.size(); ++e) {
      least = std::min(least, ends[e] - ends[e - 1]);
      most = std::max(most, ends[e] - ends[e - 1]);
    }
    return {least, most};
  }

 private:
  Lane& lane_;
  Sizes s_;
  ops::RouterOptions options_;
  Tensor x_, dout_, router_, w1_, w2_, drouter_, dw1_, dw2_;
  Tensor logits_, rows_, scale_, h_, out_, dx_, gradient1_, gradient2_;
  ops::Routing routing_;
  ops::ExpertOrder order_;
};

void wait(Lane& lane) {
  const Tensor one = lane.alloc(DType::kF64, {1}, "bench");
  ops::fill(lane, one, 0);
  ops::to_host<double>(lane, one);
}

double milliseconds(Lane& lane, RecordedWork& work, Index repeat) {
  work.replay();
  wait(lane);
  const auto begin = std::chrono::steady_clock::now();
  for (Index i = 0; i < repeat; ++i) work.replay();
  wait(lane);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(repeat);
}

int run(const std::map<std::string, std::string>& args) {
  const auto number = [&](const char* name, Index otherwise) {
    const auto it = args.find(name);
    return it == args.end() ? otherwise : std::atoll(it->second.c_str());
  };
  const Sizes s{number("experts", 128), number("topk", 8), number("hidden", 2048), number("ffn", 768),
                number("tokens", 8192)};
  const auto it = args.find("gradients");
  const DType gradients = it != args.end() && it->second == "f32" ? DType::kF32 : DType::kBF16;
  Workers workers(1);
  std::unique_ptr<Arena> first = gpu_arena(0, std::size_t{1} << 20);
  const ops::OpenedDevice device = ops::open_device(first->device());
  // What was recorded uses its memory for ever: each has an arena and a layer of its own.
  struct Work {
    Work(const char* text, Lane& like, const Sizes& s, DType of_gradients, std::size_t gib)
        : name(text),
          arena(gpu_arena(0, gib << 30)),
          lane{*arena, like.workers, like.compute, like.tools},
          layer(lane, s, of_gradients) {}
    const char* name;
    std::unique_ptr<Arena> arena;
    Lane lane;
    Layer layer;
    std::function<void()> run;
    std::unique_ptr<RecordedWork> recorded;
  };
  Lane lane{*first, workers, device.compute, device.tools.get()};
  std::vector<std::unique_ptr<Work>> all;
  for (const char* name : {"layer", "layer_f", "grouped", "grouped_f", "dense", "dense_f"}) {
    all.push_back(
        std::make_unique<Work>(name, lane, s, gradients, static_cast<std::size_t>(number("gib", 16))));
    Work& work = *all.back();
    Layer* layer = &work.layer;
    const std::string_view text(name);
    layer->forward();
    const bool back = !text.ends_with("_f");
    if (text.starts_with("layer")) {
      work.run = [=] {
        layer->forward();
        if (back) layer->backward();
      };
    } else if (text.starts_with("grouped")) {
      work.run = [=] { layer->products(back); };
    } else {
      work.run = [=] { layer->dense(back); };
    }
    work.run();
    work.run();
    work.recorded = device.tools->record(work.run);
  }
  const auto [least, most] = all[2]->layer.counts();
  std::cout << fmt::format("ready rows={} least={} most={} forward_gflop={:.1f}\n", s.rows(), least, most,
                           s.forward_flops() / 1e9)
            << std::flush;
  for (Index round = 0; round < number("rounds", 5); ++round) {
    std::string line;
    if (args.contains("paced") && !std::getline(std::cin, line)) break;
    std::string text = fmt::format("round={}", round);
    for (const auto& work : all) {
      text +=
          fmt::format(" {}={:.4f}", work->name, milliseconds(lane, *work->recorded, number("repeat", 20)));
    }
    std::cout << text << '\n' << std::flush;
  }
  std::string line;
  if (args.contains("profile") && (!args.contains("paced") || std::getline(std::cin, line))) {
    std::map<std::string, std::vector<double>> times;
    for (int i = 0; i < 5; ++i) {
      lane.tools->trace(true);
      for (const std::size_t which : {0, 4}) all[which]->run();
      for (const TracedOperation& op : lane.tools->traced()) times[op.cost.name].push_back(op.duration());
      lane.tools->trace(false);
    }
    for (auto& [name, list] : times) {
      double sum = 0;
      for (const double t : list) sum += t;
      std::cout << fmt::format("{:<60} {:>3} times, mean {:>9.1f} us\n", name, list.size() / 5,
                               sum / static_cast<double>(list.size()));
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  std::map<std::string, std::string> args;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (!name.starts_with("--")) return std::cerr << "moe_layer_bench: " << name << " is no option\n", 2;
    const bool value = i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0;
    args[name.substr(2)] = value ? argv[++i] : "";
  }
  try {
    return weft::run(args);
  } catch (const std::exception& error) {
    std::cerr << "moe_layer_bench: " << error.what() << '\n';
    return 1;
  }
}
