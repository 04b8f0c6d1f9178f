// Rates of the operations on this machine: FLOP/s of the matrix products and of attention (causal work
// counted, i.e. half of the square), bytes/s of what memory bounds. The first argument of every benchmark is
// the number of workers. Rates are per second of wall clock; on a busy machine compare the CPU column.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>

#include "ops/activation.hpp"
#include "ops/attention.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/dropout.hpp"
#include "ops/elementwise.hpp"
#include "ops/gemm.hpp"
#include "ops/norm.hpp"
#include "ops/optimizer.hpp"
#include "ops/rope.hpp"

namespace weft {
namespace {

struct Setup {
  explicit Setup(const benchmark::State& state)
      : arena(Arena::host(std::size_t{4} << 30)),
        workers(static_cast<int>(state.range(0))),
        lane{*arena, workers, {}} {}
  Tensor tensor(DType dtype, const Shape& shape) {
    Tensor x = lane.alloc(dtype, shape, "bench");
    const RandomKey key = RandomKey{1}.with(arena->allocations());
    const auto set = [&](auto* p, auto convert) {
      for (std::int64_t i = 0; i < x.elems(); i += 4) {
        const Philox bits = philox(key, static_cast<std::uint64_t>(i));
        for (std::int64_t j = 0; j < 4 && i + j < x.elems(); ++j) {
          p[i + j] = convert(uniform(bits[static_cast<std::size_t>(j)]) - 0.5f);
        }
      }
    };
    if (dtype == DType::kBF16) {
      set(x.data<bf16>(), [](float v) { return bf16(v); });
    } else {
      set(x.data<float>(), [](float v) { return v; });
    }
    return x;
  }
  std::unique_ptr<Arena> arena;
  Workers workers;
  Lane lane;
};

void rate(benchmark::State& state, const char* name, double per_iteration) {
  state.counters[name] = benchmark::Counter(per_iteration * static_cast<double>(state.iterations()),
                                            benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

enum class Form { kNT, kNN, kTN };

template <Form kForm, DType kType>
void gemm(benchmark::State& state) {
  Setup s(state);
  const std::int64_t m = state.range(1), n = state.range(2), k = state.range(3);
  const Tensor x = s.tensor(kType, {m, k}), w = s.tensor(kType, {n, k}), y = s.tensor(kType, {m, n});
  const Tensor dw = s.tensor(DType::kF32, {n, k});
  for (auto _ : state) {
    if constexpr (kForm == Form::kNT) {
      ops::gemm_nt_into(s.lane, x, w, {}, y);
    } else if constexpr (kForm == Form::kNN) {
      ops::gemm_nn_into(s.lane, y, w, x);
    } else {
      ops::gemm_tn_accumulate(s.lane, y, x, dw, 1);
    }
  }
  rate(state, "FLOP/s", 2.0 * static_cast<double>(m * n * k));
}

void gemm_sizes(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    for (const std::vector<std::int64_t>& size : std::vector<std::vector<std::int64_t>>{{4096, 2048, 512},
                                                                                        {4096, 512, 1376},
                                                                                        {1024, 2048, 512},
                                                                                        {64, 2048, 512},
                                                                                        {4096, 8192, 512},
                                                                                        {1, 2048, 512}}) {
      b->Args({threads, size[0], size[1], size[2]});
    }
  }
  b->UseRealTime()->MeasureProcessCPUTime();
}
#define WEFT_GEMM_BENCH(form, type) BENCHMARK(gemm<Form::form, DType::type>)->Apply(gemm_sizes)
WEFT_GEMM_BENCH(kNT, kF32);
WEFT_GEMM_BENCH(kNN, kF32);
WEFT_GEMM_BENCH(kTN, kF32);
WEFT_GEMM_BENCH(kNT, kBF16);
WEFT_GEMM_BENCH(kNN, kBF16);
WEFT_GEMM_BENCH(kTN, kBF16);

template <DType kType, bool kBackward>
void attention(benchmark::State& state) {
  Setup s(state);
  const std::int64_t queries = state.range(1), keys = state.range(2), batch = state.range(3),
                     heads = state.range(4);
  ops::AttentionOptions options;
  options.head_dim = static_cast<int>(state.range(5));
  options.scale = 0.125;
  options.query_offset = keys - queries;
  const std::int64_t h = heads * options.head_dim;
  const Tensor q = s.tensor(kType, {queries, batch, h}), kv = s.tensor(kType, {keys, batch, 2 * h});
  const Tensor k = kv.slice_columns(0, h), v = kv.slice_columns(h, h), dout = s.tensor(kType, q.shape());
  const Tensor dq = s.tensor(kType, q.shape()), dk = s.tensor(kType, k.shape()),
               dv = s.tensor(kType, v.shape());
  const ops::AttentionResult forward = ops::attention(s.lane, q, k, v, options);
  for (auto _ : state) {
    if constexpr (kBackward) {
      ops::attention_backward(s.lane, dout, q, k, v, forward, options, dq, dk, dv);
    } else {
      benchmark::DoNotOptimize(ops::attention(s.lane, q, k, v, options));
    }
  }
  const double pairs =
      static_cast<double>(queries) * (static_cast<double>(keys) - static_cast<double>(queries) / 2);
  rate(state, "FLOP/s", (kBackward ? 10.0 : 4.0) * pairs * static_cast<double>(batch * h));
  if (queries == 1) rate(state, "cache B/s", static_cast<double>(kv.bytes()));
}
void attention_sizes(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    b->Args({threads, 1024, 1024, 2, 8, 64});
    b->Args({threads, 1024, 1024, 1, 4, 128});
    b->Args({threads, 1, 4096, 1, 8, 64});
  }
  b->UseRealTime()->MeasureProcessCPUTime();
}
BENCHMARK(attention<DType::kF32, false>)->Apply(attention_sizes);
BENCHMARK(attention<DType::kBF16, false>)->Apply(attention_sizes);
BENCHMARK(attention<DType::kF32, true>)->Apply(attention_sizes);
BENCHMARK(attention<DType::kBF16, true>)->Apply(attention_sizes);

// Bytes of operands read or written once.
template <class Body>
void streaming(benchmark::State& state, double bytes, const Body& body) {
  for (auto _ : state) body();
  rate(state, "B/s", bytes);
}
void thread_counts(benchmark::internal::Benchmark* b) {
  b->Arg(1)->Arg(2)->UseRealTime()->MeasureProcessCPUTime();
}

constexpr std::int64_t kTokens = 4096, kHidden = 512;

template <DType kType>
void swiglu(benchmark::State& state) {
  Setup s(state);
  const Tensor x = s.tensor(kType, {kTokens, 2 * kHidden});
  streaming(state, 1.5 * static_cast<double>(x.bytes()),
            [&] { benchmark::DoNotOptimize(ops::gated_activation(s.lane, ops::Activation::kSilu, x)); });
}
template <DType kType>
void swiglu_backward(benchmark::State& state) {
  Setup s(state);
  const Tensor x = s.tensor(kType, {kTokens, 2 * kHidden}), dy = s.tensor(kType, {kTokens, kHidden});
  streaming(state, 2.5 * static_cast<double>(x.bytes()), [&] {
    benchmark::DoNotOptimize(ops::gated_activation_backward(s.lane, ops::Activation::kSilu, dy, x));
  });
}
template <DType kType>
void gelu_tanh(benchmark::State& state) {
  Setup s(state);
  const Tensor x = s.tensor(kType, {kTokens, 4 * kHidden});
  streaming(state, 2.0 * static_cast<double>(x.bytes()),
            [&] { benchmark::DoNotOptimize(ops::activation(s.lane, ops::Activation::kGeluTanh, x)); });
}
template <DType kType>
void rms_norm(benchmark::State& state) {
  Setup s(state);
  const Tensor x = s.tensor(kType, {kTokens, kHidden}), w = s.tensor(kType, {kHidden});
  streaming(state, 2.0 * static_cast<double>(x.bytes()),
            [&] { benchmark::DoNotOptimize(ops::rms_norm(s.lane, x, w, 1e-5)); });
}
template <DType kType>
void rms_norm_backward(benchmark::State& state) {
  Setup s(state);
  const Tensor x = s.tensor(kType, {kTokens, kHidden}), w = s.tensor(kType, {kHidden}),
               dy = s.tensor(kType, x.shape());
  const ops::NormResult r = ops::rms_norm(s.lane, x, w, 1e-5);
  const ops::NormGradients g{s.tensor(DType::kF32, {kHidden}), {}, 1};
  streaming(state, 4.0 * static_cast<double>(x.bytes()),
            [&] { benchmark::DoNotOptimize(ops::rms_norm_backward(s.lane, dy, x, w, r.rstd, x, g)); });
}
template <DType kType>
void dropout_add(benchmark::State& state) {
  Setup s(state);
  const Tensor x = s.tensor(kType, {kTokens, 1, kHidden});
  std::int64_t sample = 3;
  ops::DropoutSite site;
  site.p = 0.1;
  site.sample_ids = Tensor::borrow(&sample, DType::kI64, {1});
  streaming(state, 3.0 * static_cast<double>(x.bytes()),
            [&] { benchmark::DoNotOptimize(ops::bias_dropout_add(s.lane, x, {}, x, site)); });
}
template <DType kType>
void cross_entropy(benchmark::State& state) {
  Setup s(state);
  const Tensor logits = s.tensor(kType, {512, 1, 8192});
  const Tensor labels = s.lane.alloc(DType::kI32, {1, 512}, "labels");
  std::memset(labels.raw(), 0, labels.bytes());
  ops::CrossEntropyOptions options;
  options.vocabulary = 8192;
  streaming(state, 3.0 * static_cast<double>(logits.bytes()), [&] {
    const ops::CrossEntropyLocal local = ops::cross_entropy_local(s.lane, logits, labels, options);
    const ops::CrossEntropyResult r =
        ops::cross_entropy_finish(s.lane, local.max, local.sums, labels, options);
    ops::cross_entropy_backward(s.lane, logits, r.lse, labels, options, 1);
  });
}
template <DType kType>
void rope(benchmark::State& state) {
  Setup s(state);
  const Tensor x = s.tensor(kType, {kTokens, 1, kHidden});
  const ops::RopeTable table{s.tensor(DType::kF32, {kTokens, 32}), s.tensor(DType::kF32, {kTokens, 32}),
                             false};
  streaming(state, 2.0 * static_cast<double>(x.bytes()),
            [&] { ops::rope_in_place(s.lane, x, table, {}, 64, false); });
}
template <DType kType>
void sums_of_squares(benchmark::State& state) {
  Setup s(state);
  const Tensor x = s.tensor(kType, {std::int64_t{1} << 24}), out = s.lane.alloc(DType::kF64, {1}, "out");
  const ops::FlatPieces pieces(s.lane, {{.elems = x.elems(), .tag = 0}});
  streaming(state, static_cast<double>(x.bytes()), [&] { ops::sums_of_squares(s.lane, pieces, x, out); });
}
template <DType kType>  // of the weight
void adamw(benchmark::State& state) {
  Setup s(state);
  const Shape n = {std::int64_t{1} << 23};
  const Tensor p = s.tensor(DType::kF32, n), m = s.tensor(DType::kF32, n),
               v = s.lane.alloc(DType::kF32, n, "v");
  const Tensor g = s.tensor(DType::kF32, n), w = kType == DType::kF32 ? p : s.tensor(kType, n);
  const ops::FlatPieces pieces(s.lane, {{.elems = p.elems(), .tag = 1}});
  ops::fill(s.lane, v, 0.1);
  streaming(
      state,
      7.0 * static_cast<double>(p.bytes()) + (kType == DType::kF32 ? 0.0 : static_cast<double>(w.bytes())),
      [&] {
        ops::adamw(s.lane, {}, pieces, {p, m, v, g, w});
      });
}

#define WEFT_STREAM_BENCH(name)                       \
  BENCHMARK(name<DType::kF32>)->Apply(thread_counts); \
  BENCHMARK(name<DType::kBF16>)->Apply(thread_counts)
WEFT_STREAM_BENCH(swiglu);
WEFT_STREAM_BENCH(swiglu_backward);
WEFT_STREAM_BENCH(gelu_tanh);
WEFT_STREAM_BENCH(rms_norm);
WEFT_STREAM_BENCH(rms_norm_backward);
WEFT_STREAM_BENCH(dropout_add);
WEFT_STREAM_BENCH(cross_entropy);
WEFT_STREAM_BENCH(rope);
WEFT_STREAM_BENCH(sums_of_squares);
WEFT_STREAM_BENCH(adamw);

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
