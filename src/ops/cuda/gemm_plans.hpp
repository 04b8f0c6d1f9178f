// How each matrix product of a rank is computed by cuBLASLt: the algorithm of every shape, found once.
#pragma once

#include <cublasLt.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "ops/cuda/plan_file.hpp"
#include "ops/device_tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {

// For one thread. Only algorithms that give the same bits in every run are used; with tuning, which of them
// is a matter of measured time, unless a plan cache says.
class GemmPlans {
 public:
  GemmPlans(int device, const DeviceOptions& options);
  ~GemmPlans();  // keeps what was tuned
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  void run(cudaStream_t stream, const Gemm& g, const Tensor& scratch);

  // Shapes that were tuned here, and that were taken from the plan cache.
  int tuned() const { return tuned_; }
  int remembered() const { return remembered_; }

 private:
  // Form, types, sizes, leading dimensions, bias or not, alignment of the pointers: not beta.
  using Key = std::array<std::int64_t, 14>;
  // cuBLASLt thinks in columns: what are rows here are columns there, so c = a · b is computed as cᵀ = bᵀ ·
  // aᵀ, and its A is b, its B is a.
  struct Plan {
    cublasLtMatmulDescOpaque_t product{};
    cublasLtMatrixLayoutOpaque_t b{}, a{}, c{};
    cublasLtMatmulAlgo_t algorithm{};
    bool bias_in_epilogue = false;  // else the bias is laid into c first, and the product is added
    bool settled = false;           // nothing is left to tune
  };
  using Candidates = std::vector<cublasLtMatmulHeuristicResult_t>;

  static Key key_of(const Gemm& g);
  std::string name_of(const Key& key) const;
  Plan plan_for(const Gemm& g, const Tensor& scratch, const std::string& name);
  Candidates candidates(Plan& plan, const Gemm& g, const Tensor& scratch) const;
  void tune(cudaStream_t stream, Plan& plan, const Gemm& g, const Tensor& scratch, const std::string& name);
  cublasStatus_t launch(cudaStream_t stream, Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Gemm& g,
                        float beta, const Tensor& scratch) const;

  cublasLtHandle_t handle_ = nullptr;
  bool tune_;
  std::string gpu_;  // and version of the library: what an algorithm is good for
  PlanFile file_;
  std::map<Key, Plan> plans_;
  int tuned_ = 0, remembered_ = 0;
};

}  // namespace weft::ops::cuda
