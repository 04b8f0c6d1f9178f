#include "ops/cuda/cudnn_attention.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>
#include <unordered_map>

#include "core/log.hpp"
#include "ops/cuda/tools.hpp"

// The frontend carries an engine (not for attention) that compiles at run time. Its compiler, libnvrtc, is to
// be looked for only if that engine is ever used: the program must start without it.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend_shim.h>
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define HMODULE void*  // as the frontend defines it in this mode
#include <cudnn_frontend/experimental/nvrtc_shim.h>
#undef NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#undef HMODULE
#include <cudnn_frontend.h>

namespace weft::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Described = std::shared_ptr<Tensor_attributes>;

constexpr std::int64_t kSlack = 64 << 10;  // cuDNN 9.19 takes 256 bytes beside the tensors named below

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

std::array<int, 3> parts_of(std::size_t version) {
  const int v = static_cast<int>(version);
  return {v / 10000, v / 100 % 100, v % 100};
}
std::string version_text(std::size_t version) {
  return weft::version_text(parts_of(version));
}

fe::DataType_t type_of(DType dtype) {
  return dtype == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
}

enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kStats, kDout, kDq, kDk, kDv };
using Pointers = std::unordered_map<std::int64_t, void*>;

// x [s, b, heads · d] as cuDNN's [b, heads, s, d], where it lies.
void describe(Tensor_attributes& attributes, Uid uid, const Tensor& x, std::int64_t d) {
  attributes.set_uid(uid)
      .set_dim({x.dim(1), x.columns() / d, x.dim(0), d})
      .set_stride({x.ld(), d, x.dim(1) * x.ld(), 1});
}
// lse [b, heads, s] as [b, heads, s, 1].
void describe_stats(Tensor_attributes& attributes, const Tensor& lse) {
  const std::int64_t heads = lse.dim(1), s = lse.dim(2);
  attributes.set_uid(kStats)
      .set_dim({lse.dim(0), heads, s, 1})
      .set_stride({heads * s, s, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}
Described input(Graph& graph, Uid uid, const Tensor& x, std::int64_t d) {
  Tensor_attributes attributes;
  describe(attributes, uid, x, d);
  return graph.tensor(attributes);
}
// 0 also where the window is so wide that it hides nothing: all of these have one plan.
std::int64_t window_of(const Tensor& k, const AttentionOptions& options) {
  return options.window < k.dim(0) ? options.window : 0;
}
// A causal mask is such that the last query sees the last key (cudnn_attention_takes()). A window counts the
// query's own key, as cuDNN's left bound does: key + bound > query.
template <class Attributes>
void mask(Attributes& attributes, const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  if (!options.causal) return;
  if (q.dim(0) == k.dim(0)) {
    attributes.set_causal_mask(true);
  } else {
    attributes.set_causal_mask_bottom_right(true);
  }
  if (const std::int64_t window = window_of(k, options); window > 0) {
    attributes.set_diagonal_band_left_bound(static_cast<int>(window));
  }
}
void output(const Described& attributes, Uid uid, const Tensor& x, std::int64_t d) {
  describe(*attributes, uid, x, d);
  attributes->set_output(true);
}

}  // namespace

// The plans of one rank, for one thread: one for each kind, shape, layout and set of options.
class AttentionPlans {
 public:
  AttentionPlans() = default;
  ~AttentionPlans() {
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }
  AttentionPlans(const AttentionPlans&) = delete;
  AttentionPlans& operator=(const AttentionPlans&) = delete;

  using Key = std::array<std::int64_t, 20>;
  using Build = std::function<void(Graph&, fe::AttentionImplementation_t)>;

  // Runs the plan of `key`, which is built when it is first asked for.
  void run(cudaStream_t stream, const char* what, const Key& key, DType dtype, const Build& build,
           Pointers& pointers, const Tensor& scratch) {
    open(stream);
    auto it = plans_.find(key);
    if (it == plans_.end()) it = plans_.emplace(key, plan(what, key, dtype, build, scratch)).first;
    const auto status = it->second->execute(handle_, pointers, scratch.raw());
    if (status.is_bad()) [[unlikely]] {
      weft::cuda::check_kernels(stream, what);
      fail("{} by cuDNN: {}", what, status.err_msg);
    }
  }

 private:
  // The first attention of a rank starts cuDNN: runs without bf16 and f16 need none of it.
  void open(cudaStream_t stream) {
    if (handle_ == nullptr) {
      const cudnnStatus_t status = cudnnCreate(&handle_);
      if (status != CUDNN_STATUS_SUCCESS) {
        handle_ = nullptr;
        char why[512] = "";
        cudnnGetLastErrorString(why, sizeof why);
        fail(
            "cuDNN does not start: {} {}(libcudnn.so.9 is {}, this program was built with {}); the parts of "
            "cuDNN, libcudnn_*.so.9, must be of one version and lie beside libcudnn.so.9 or on "
            "LD_LIBRARY_PATH",
            cudnnGetErrorString(status), *why != 0 ? fmt::format("[{}] ", why) : "",
            version_text(cudnnGetVersion()), version_text(CUDNN_VERSION));
      }
    }
    if (stream_ == stream) return;
    if (cudnnSetStream(handle_, stream) != CUDNN_STATUS_SUCCESS) fail("cuDNN does not take the stream");
    stream_ = stream;
  }

  std::shared_ptr<Graph> plan(const char* what, const Key& key, DType dtype, const Build& build,
                              const Tensor& scratch) {
    std::string problems;
    // Its newer single node where it is there, else the composed one.
    for (const auto implementation :
         {fe::AttentionImplementation_t::AUTO, fe::AttentionImplementation_t::COMPOSITE}) {
      auto graph = std::make_shared<Graph>();
      const std::string problem = try_build(*graph, dtype, build, implementation);
      if (problem.empty()) {
        fits(what, key, *graph, scratch);
        return graph;
      }
      problems += "\n  " + problem;
    }
    fail(
        "cuDNN {} (built with {}) has no plan for {} {} (its kernels are compiled when they are first used: "
        "libnvrtc.so.13 and libnvrtc-builtins.so.13 must be found too):{}",
        version_text(cudnnGetVersion()), version_text(CUDNN_VERSION), what, text(key), problems);
  }

  // "" or what cuDNN says against it.
  std::string try_build(Graph& graph, DType dtype, const Build& build,
                        fe::AttentionImplementation_t implementation) {
    graph.set_io_data_type(type_of(dtype))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    try {
      build(graph, implementation);
      const auto status = graph.build(handle_, {fe::HeurMode_t::A});
      if (status.is_good()) return "";
      return status.err_msg.empty() ? "no reason given" : status.err_msg;
    } catch (const std::exception& e) {
      return e.what();
    }
  }

  static void fits(const char* what, const Key& key, const Graph& graph, const Tensor& scratch) {
    std::int64_t needed = 0;
    const auto status = graph.get_workspace_size(needed);
    if (status.is_bad()) fail("{} by cuDNN: no size of its workspace: {}", what, status.err_msg);
    log_debug("cuDNN {} {}: workspace {} of {} bytes", what, text(key), needed, scratch.bytes());
    if (static_cast<std::uint64_t>(needed) > scratch.bytes()) {
      fail(
          "{} by cuDNN {} needs {} bytes of workspace, and {} were planned (the bounds in "
          "cudnn_attention.cpp are for cuDNN {}): {}",
          what, version_text(cudnnGetVersion()), needed, scratch.bytes(), version_text(CUDNN_VERSION),
          text(key));
    }
  }

  static std::string text(const Key& key) {
    return fmt::format(
        "[type {}, b {}, heads {}/{}, s {}/{}, d {}, causal {}, window {}, deterministic {}, strides {}]",
        weft::name_of(static_cast<DType>(key[1])), key[2], key[3], key[4], key[5], key[6], key[7], key[8],
        key[9], key[10], fmt::join(key.begin() + 12, key.end(), " "));
  }

  cudnnHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::map<Key, std::shared_ptr<Graph>> plans_;
};

GpuLibrary attention_library();
GpuLibrary attention_library() {
  return {"cuDNN", "libcudnn.so.9", parts_of(CUDNN_VERSION), parts_of(cudnnGetVersion())};
}

std::shared_ptr<AttentionPlans> make_attention_plans(int) {
  return std::make_shared<AttentionPlans>();
}

namespace {

// Offsets are not part of it: under a mask the lengths say them, and without one they do not matter. dout and
// the gradients: undefined in the forward pass.
AttentionPlans::Key key_of(bool backward, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionOptions& options, const AttentionResult& result,
                           const std::array<const Tensor*, 4>& gradients) {
  const std::int64_t d = options.head_dim;
  AttentionPlans::Key key{backward ? 1 : 0,
                          static_cast<std::int64_t>(q.dtype()),
                          q.dim(1),
                          q.columns() / d,
                          k.columns() / d,
                          q.dim(0),
                          k.dim(0),
                          d,
                          options.causal ? 1 : 0,
                          window_of(k, options),
                          backward && options.deterministic ? 1 : 0,
                          std::bit_cast<std::int64_t>(options.scale),
                          q.ld(),
                          k.ld(),
                          v.ld(),
                          result.out.ld()};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    key[16 + i] = gradients[i] != nullptr ? gradients[i]->ld() : 0;
  }
  return key;
}

}  // namespace

bool cudnn_attention_takes(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  const bool narrow = q.dtype() == DType::kBF16 || q.dtype() == DType::kF16;
  // A single query or key is left to the kernels for decoding: cuDNN has no gradient of it.
  const bool whole = q.dim(0) > 1 && k.dim(0) > 1 && q.dim(1) > 0 && q.columns() > 0;
  const bool mask =
      !options.causal || (options.query_offset >= 0 && options.query_offset == k.dim(0) - q.dim(0));
  const bool refined = options.first_keys.defined() || options.soft_cap > 0 || options.sinks.defined();
  return narrow && whole && mask && !refined && options.recurs && options.dropout == 0 &&
         options.head_dim % 8 == 0 && options.head_dim <= 128;
}

bool cudnn_attention_reaches(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* x) {
    return reinterpret_cast<std::uintptr_t>(x->raw()) % 16 == 0 && x->ld() % 8 == 0;
  });
}

std::int64_t cudnn_attention_scratch() {
  return kSlack;
}

// What cuDNN keeps between its kernels: a sum for every row; dq in f32 or, in the deterministic form, the
// gradients of all scores in 16 bits, in tiles of 64 x 128; with grouped queries dk and dv of every query
// head, in 16 bits, before they are added up.
std::int64_t cudnn_attention_backward_scratch(const Tensor& q, const Tensor& k,
                                              const AttentionOptions& options) {
  const std::int64_t d = options.head_dim, queries = q.dim(0), keys = k.dim(0);
  const std::int64_t heads = q.dim(1) * (q.columns() / d);
  std::int64_t bytes = heads * queries * 4;
  bytes += options.deterministic ? heads * round_up(queries, 64) * round_up(keys, 128) * 2
                                 : heads * queries * d * 4;
  if (k.columns() < q.columns()) bytes += 2 * heads * keys * d * 2;
  return bytes + kSlack;
}

void cudnn_attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options, const AttentionResult& result, const Tensor& scratch) {
  const std::int64_t d = options.head_dim;
  const auto build = [&](Graph& graph, fe::AttentionImplementation_t implementation) {
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention")
                          .set_generate_stats(true)
                          .set_attn_scale(static_cast<float>(options.scale))
                          .set_implementation(implementation);
    mask(attributes, q, k, options);
    auto [out, stats] =
        graph.sdpa(input(graph, kQ, q, d), input(graph, kK, k, d), input(graph, kV, v, d), attributes);
    output(out, kOut, result.out, d);
    describe_stats(*stats, result.lse);
    stats->set_output(true);
  };
  Pointers pointers{
      {kQ, q.raw()}, {kK, k.raw()}, {kV, v.raw()}, {kOut, result.out.raw()}, {kStats, result.lse.raw()}};
  tools(lane).attentions->run(stream(lane), "attention", key_of(false, q, k, v, options, result, {}),
                              q.dtype(), build, pointers, scratch);
}

void cudnn_attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k,
                              const Tensor& v, const AttentionResult& forward,
                              const AttentionOptions& options, const Tensor& dq, const Tensor& dk,
                              const Tensor& dv, const Tensor& scratch) {
  const std::int64_t d = options.head_dim;
  const auto build = [&](Graph& graph, fe::AttentionImplementation_t) {
    Tensor_attributes statistics;
    describe_stats(statistics, forward.lse);
    auto attributes = fe::graph::SDPA_backward_attributes()
                          .set_name("attention backward")
                          .set_attn_scale(static_cast<float>(options.scale))
                          .set_deterministic_algorithm(options.deterministic);
    mask(attributes, q, k, options);
    auto [out_q, out_k, out_v] =
        graph.sdpa_backward(input(graph, kQ, q, d), input(graph, kK, k, d), input(graph, kV, v, d),
                            input(graph, kOut, forward.out, d), input(graph, kDout, dout, d),
                            graph.tensor(statistics), attributes);
    output(out_q, kDq, dq, d);
    output(out_k, kDk, dk, d);
    output(out_v, kDv, dv, d);
  };
  Pointers pointers{{kQ, q.raw()},
                    {kK, k.raw()},
                    {kV, v.raw()},
                    {kOut, forward.out.raw()},
                    {kStats, forward.lse.raw()},
                    {kDout, dout.raw()},
                    {kDq, dq.raw()},
                    {kDk, dk.raw()},
                    {kDv, dv.raw()}};
  tools(lane).attentions->run(stream(lane), "attention backward",
                              key_of(true, q, k, v, options, forward, {&dout, &dq, &dk, &dv}), q.dtype(),
                              build, pointers, scratch);
}

}  // namespace weft::ops::cuda
