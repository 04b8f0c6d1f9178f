#include <algorithm>
#include <bit>
#include <limits>

#include "core/log.hpp"
#include "ops/checks.hpp"
#include "ops/cuda/broadcast.hpp"
#include "ops/cuda/gemm_plans.hpp"
#include "ops/cuda/tools.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kCandidates = 12;
constexpr float kTuneMilliseconds = 3;  // of measuring one algorithm
constexpr float kWorthIt = 0.99f;       // of the first candidate's time: noise is less

void check_lt(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  fail("cuBLASLt: cannot {}: {}", what, cublasLtGetStatusString(status));
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return CUDA_R_64F;
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      fail("a matrix product of {}", name_of(dtype));
  }
}

// 16, or the largest power of two below it that the address is a multiple of.
std::uint32_t alignment(const Tensor& x) {
  if (!x.defined()) return 16;
  const auto address = reinterpret_cast<std::uintptr_t>(x.raw()) | 16u;
  return 1u << std::countr_zero(address);
}

// The distance of rows; of a single row whatever it is long.
std::int64_t stride(const Tensor& x) {
  return std::max<std::int64_t>({x.rows() == 1 ? 0 : x.ld(), x.columns(), 1});
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& product, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_lt(cublasLtMatmulDescSetAttribute(&product, attribute, &value, sizeof value), "describe a product");
}
template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& wish, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  check_lt(cublasLtMatmulPreferenceSetAttribute(&wish, attribute, &value, sizeof value), "state a wish");
}

void lay_out(cublasLtMatrixLayoutOpaque_t& layout, const Tensor& x) {
  check_lt(cublasLtMatrixLayoutInit(&layout, type_of(x.dtype()), static_cast<std::uint64_t>(x.columns()),
                                    static_cast<std::uint64_t>(x.rows()), stride(x)),
           "describe a matrix");
}

// Two events around work on a stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    check(cudaEventCreate(&start_), "make an event");
    check(cudaEventCreate(&stop_), "make an event");
  }
  ~Stopwatch() {
    cudaEventDestroy(start_);
    if (stop_ != nullptr) cudaEventDestroy(stop_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void start() { check(cudaEventRecord(start_, stream_), "record an event"); }
  float milliseconds() {
    float elapsed = 0;
    check(cudaEventRecord(stop_, stream_), "record an event");
    check(cudaEventSynchronize(stop_), "measure a matrix product");
    check(cudaEventElapsedTime(&elapsed, start_, stop_), "read an event");
    return elapsed;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

}  // namespace

GemmPlans::GemmPlans(int device, const DeviceOptions& options)
    : tune_(options.tune), file_(options.tune ? PlanFile(options.plan_cache) : PlanFile()) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "read the properties of a GPU");
  gpu_ = fmt::format("{}; cuBLASLt {}", properties.name, cublasLtGetVersion());
  check_lt(cublasLtCreate(&handle_), "start");
}

GemmPlans::~GemmPlans() {
  file_.save();
  cublasLtDestroy(handle_);
}

GemmPlans::Key GemmPlans::key_of(const Gemm& g) {
  return {static_cast<std::int64_t>(g.form),
          static_cast<std::int64_t>(g.a.dtype()),
          static_cast<std::int64_t>(g.c.dtype()),
          g.m(),
          g.n(),
          g.k(),
          stride(g.a),
          stride(g.b),
          stride(g.c),
          g.bias.defined() ? 1 : 0,
          alignment(g.a),
          alignment(g.b),
          alignment(g.c),
          alignment(g.bias)};
}

std::string GemmPlans::name_of(const Key& key) const {
  static constexpr const char* kForms[] = {"nt", "nn", "tn"};
  return fmt::format("{}; {} {} -> {}; m {} n {} k {}; strides {} {} {}; bias {}; aligned {} {} {} {}", gpu_,
                     kForms[key[0]], weft::name_of(static_cast<DType>(key[1])),
                     weft::name_of(static_cast<DType>(key[2])), key[3], key[4], key[5], key[6], key[7],
                     key[8], key[9], key[10], key[11], key[12], key[13]);
}

GemmPlans::Candidates GemmPlans::candidates(Plan& plan, const Gemm& g, const Tensor& scratch) const {
  cublasLtMatmulPreferenceOpaque_t wish{};
  check_lt(cublasLtMatmulPreferenceInit(&wish), "state a wish");
  set(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(scratch.bytes()));
  // Where k is split, the parts are added in a second pass, in order and in the accumulator type.
  set(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(g.b));
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(g.a));
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(g.c));
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(g.c));
  if (g.a.dtype() == DType::kF32) {  // all 24 bits, whatever the environment says of TF32 and emulation
    constexpr std::uint64_t kNarrower = CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32 |
                                        CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF |
                                        CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F;
    set(wish, CUBLASLT_MATMUL_PREF_IMPL_MASK, ~kNarrower);
  }
  Candidates found(kCandidates);
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, &plan.product, &plan.b, &plan.a, &plan.c, &plan.c, &wish, kCandidates, found.data(), &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_lt(status, "choose an algorithm");
  found.resize(static_cast<std::size_t>(count));
  std::erase_if(found, [&](const auto& f) {
    return f.state != CUBLAS_STATUS_SUCCESS || f.workspaceSize > scratch.bytes();
  });
  return found;
}

GemmPlans::Plan GemmPlans::plan_for(const Gemm& g, const Tensor& scratch, const std::string& name) {
  Plan plan;
  const bool wide = g.a.dtype() == DType::kF64;
  check_lt(cublasLtMatmulDescInit(&plan.product, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                  wide ? CUDA_R_64F : CUDA_R_32F),
           "describe a product");
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, g.form == Gemm::Form::kNT ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, g.form == Gemm::Form::kTN ? CUBLAS_OP_T : CUBLAS_OP_N);
  lay_out(plan.a, g.a);
  lay_out(plan.b, g.b);
  lay_out(plan.c, g.c);
  const auto put_bias_in_epilogue = [&](bool yes) {
    plan.bias_in_epilogue = yes;
    set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE,
        yes ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    // The pointer's alignment is part of the choice.
    set<const void*>(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, yes ? g.bias.raw() : nullptr);
  };
  // The epilogue knows no f64, and no bias of another type than the result.
  put_bias_in_epilogue(g.bias.defined() && !wide && g.bias.dtype() == g.c.dtype());

  if (const PlanFile::Bits* bits = tune_ ? file_.find(name) : nullptr) {
    static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(PlanFile::Bits));
    plan.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*bits);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_, &plan.product, &plan.b, &plan.a, &plan.c,
                                                          &plan.c, &plan.algorithm, &result);
    if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= scratch.bytes()) {
      plan.settled = true;
      ++remembered_;
      return plan;
    }
    log_warn("a kept plan is of no use here, tuning again: {}", name);
  }
  Candidates found = candidates(plan, g, scratch);
  if (found.empty() && plan.bias_in_epilogue) {
    put_bias_in_epilogue(false);
    found = candidates(plan, g, scratch);
  }
  if (found.empty()) fail("cuBLASLt has no algorithm for {}", name);
  plan.algorithm = found.front().algo;
  plan.settled = !tune_;
  return plan;
}

cublasStatus_t GemmPlans::launch(cudaStream_t stream, Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                                 const Gemm& g, float beta, const Tensor& scratch) const {
  const double wide_alpha = 1, wide_beta = beta;
  const float alpha = 1;
  const bool wide = g.a.dtype() == DType::kF64;
  if (plan.bias_in_epilogue) {
    set<const void*>(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias.raw());
  }
  return cublasLtMatmul(handle_, &plan.product, wide ? static_cast<const void*>(&wide_alpha) : &alpha,
                        g.b.raw(), &plan.b, g.a.raw(), &plan.a,
                        wide ? static_cast<const void*>(&wide_beta) : &beta, g.c.raw(), &plan.c, g.c.raw(),
                        &plan.c, &algorithm, scratch.raw(), scratch.bytes(), stream);
}

// Every product here writes c anew from the same operands: it may be repeated.
void GemmPlans::tune(cudaStream_t stream, Plan& plan, const Gemm& g, const Tensor& scratch,
                     const std::string& name) {
  const Candidates found = candidates(plan, g, scratch);
  Stopwatch watch(stream);
  // Milliseconds of one product; infinity where the algorithm does not run after all.
  const auto time = [&](const cublasLtMatmulHeuristicResult_t& candidate) {
    const auto once = [&] { return launch(stream, plan, candidate.algo, g, 0, scratch); };
    if (once() != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<float>::infinity();
    watch.start();
    check_lt(once(), "multiply");
    const float first = std::max(watch.milliseconds(), 1e-3f);
    const int runs = std::clamp(static_cast<int>(kTuneMilliseconds / first), 3, 100);
    watch.start();
    for (int i = 0; i < runs; ++i) check_lt(once(), "multiply");
    return watch.milliseconds() / static_cast<float>(runs);
  };
  std::vector<float> times;
  for (const auto& candidate : found) times.push_back(time(candidate));
  const auto best = std::min_element(times.begin(), times.end()) - times.begin();
  std::size_t chosen = 0;
  if (best != 0) {  // it must win twice
    const auto other = static_cast<std::size_t>(best);
    times[0] = std::min(times[0], time(found[0]));
    times[other] = std::max(times[other], time(found[other]));
    if (times[other] < kWorthIt * times[0]) chosen = other;
  }
  if (times.empty() || !(times[chosen] < std::numeric_limits<float>::infinity())) {
    fail("cuBLASLt: none of {} algorithms runs for {}", found.size(), name);
  }
  log_debug("tuned {}: algorithm {} of {}, {:.4f} ms (the first: {:.4f} ms)", name, chosen + 1, found.size(),
            times[chosen], times[0]);
  plan.algorithm = found[chosen].algo;
  plan.settled = true;
  ++tuned_;
  file_.put(name, std::bit_cast<PlanFile::Bits>(plan.algorithm));
}

void GemmPlans::run(cudaStream_t stream, const Gemm& g, const Tensor& scratch) {
  const Key key = key_of(g);
  auto it = plans_.find(key);
  if (it == plans_.end()) it = plans_.emplace(key, plan_for(g, scratch, name_of(key))).first;
  Plan& plan = it->second;
  // With beta 1 a product cannot be repeated: it takes the library's choice and leaves tuning to another.
  if (!plan.settled && g.beta == 0) tune(stream, plan, g, scratch, name_of(key));
  float beta = g.beta;
  if (g.bias.defined() && !plan.bias_in_epilogue) {
    broadcast_row(stream, g.bias, g.c);
    beta = 1;
  }
  const cublasStatus_t status = launch(stream, plan, plan.algorithm, g, beta, scratch);
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    weft::cuda::check_kernels(stream, "run a matrix product");
    fail("cuBLASLt: {}: {}", name_of(key), cublasLtGetStatusString(status));
  }
}

std::shared_ptr<GemmPlans> make_gemm_plans(int device, const DeviceOptions& options) {
  return std::make_shared<GemmPlans>(device, options);
}

// What cuBLASLt recommends for Hopper; small products do not profit from it.
std::int64_t gemm_scratch(const Lane&, const Gemm& g) {
  const bool narrow = bytes_of(g.a.dtype()) == 2;
  const bool large = g.m() * g.n() * g.k() >= std::int64_t{1} << 30;
  return std::int64_t{narrow && large ? 32 : 4} << 20;
}

void gemm(Lane& lane, const Gemm& g, const Tensor& scratch) {
  WEFT_CHECK(g.beta == 0 || (g.beta == 1 && !g.bias.defined()), "gemm: beta {} and bias {}", g.beta,
             describe(g.bias));
  if (g.k() > 0) {
    tools(lane).gemms->run(stream(lane), g, scratch);
  } else if (g.bias.defined()) {
    broadcast_row(stream(lane), g.bias, g.c);
  } else if (g.beta == 0) {
    const std::size_t size = bytes_of(g.c.dtype());
    check(cudaMemset2DAsync(g.c.raw(), static_cast<std::size_t>(stride(g.c)) * size, 0,
                            static_cast<std::size_t>(g.n()) * size, static_cast<std::size_t>(g.m()),
                            stream(lane)),
          "clear a matrix");
  }
}

}  // namespace weft::ops::cuda
