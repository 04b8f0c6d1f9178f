// Generation: prompts in, one token after another out, with a key/value cache. Model and cache are on the
// lane's device, the choice among the logits is made on the host.
//
// Prompts of unequal length run together without padding: all rows stand at the same position, and a row
// whose prompt is longer takes its next token from there instead of drawing one. So a row's positions, and
// its tokens, are the same alone and in company.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data_parallel/param_buffer.hpp"
#include "infer/sampler.hpp"
#include "model/gpt_model.hpp"

namespace weft {

struct GenerateRequest {
  using Tokens = std::vector<std::int32_t>;
  std::vector<Tokens> prompts;           // rows
  std::vector<std::uint64_t> sequences;  // numbers of the rows, for the sampler; empty: 0, 1, ...
  std::int64_t max_new_tokens = 0;
  SamplingOptions sampling;
  std::vector<std::int64_t> end_tokens;  // a row ends with the first of these; empty: none

  // Positions that the longest row takes.
  std::int64_t positions() const;
};

// Everything that keeps `config` from serving the request, by the names of the command line; empty: fine.
std::vector<std::string> problems_of(const GenerateRequest& request, const ModelConfig& config);

struct GeneratedToken {
  std::size_t row;
  std::int32_t token;
  std::span<const double> logits;  // it was chosen from, unpadded vocabulary; empty where rank 0 of tp chose
  bool last;                       // of its row
};
using OnToken = std::function<void(const GeneratedToken&)>;

class Generator {
 public:
  // Takes memory for the weights and tables from the lane; the caller fills the weights before the first
  // request. `positions`: the most that any request takes. Collective over tp, which outlives this.
  Generator(Lane& lane, Communicator& tp, const ModelConfig& config, DType dtype, std::int64_t positions);

  // Dense parameters, and those of experts (an empty buffer without any).
  ParamBuffer& weights() { return *buffer_; }
  ParamBuffer& expert_weights() { return *expert_buffer_; }
  ParamSet& params() { return params_; }

  // Prompts and what follows them, an end token included. ConfigError with every problem before anything is
  // computed. Collective over tp: the first rank chooses each token and all get it. The cache lives as long
  // as the call; every token takes the same memory as the one before, plus scratch that may grow with the
  // positions seen.
  std::vector<GenerateRequest::Tokens> generate(const GenerateRequest& request, const OnToken& on_token = {});

  // Reads every shape that generate() reads for the request once, with weights that mean nothing, and forgets
  // it: so that all of a device's kernels are loaded before ranks begin to wait for each other on it. Among
  // planned ranks.
  void rehearse(const GenerateRequest& request);
  // Of the cache that the request takes on this rank.
  std::size_t cache_bytes(const GenerateRequest& request) const;

 private:
  Shape cache_shape(const LayerSpec& layer, const GenerateRequest& request) const;
  KvCache make_cache(const GenerateRequest& request);
  // Logits of the position after `count` tokens of each row from `first` on: on the first rank
  // [row][vocabulary].
  std::vector<std::vector<double>> feed(const std::vector<GenerateRequest::Tokens>& rows, std::int64_t first,
                                        std::int64_t count, KvCache& cache);
  // The first rank's `chosen` on every rank.
  void agree(std::vector<std::int32_t>& chosen);

  Lane& lane_;
  Communicator& tp_;
  std::unique_ptr<Communicator> self_;
  ModelConfig config_;
  ModelSpec spec_;
  DType dtype_;
  ParamSet params_;
  std::unique_ptr<GptModel> model_;
  std::unique_ptr<ParamBuffer> buffer_, expert_buffer_;
};

struct GenerationMemory {
  std::size_t arena = 0;               // its size
  std::size_t weights = 0, cache = 0;  // of it; the largest cache of a request
};
// What one rank of a tensor-parallel group needs on this kind of device for a Generator and these requests,
// one after another: the same code, run on memory that is only counted. `workers` as in the run (scratch
// depends on it).
GenerationMemory generation_memory(DeviceKind device, Workers& workers, const ModelConfig& config,
                                   DType dtype, int tensor_parallel_rank, int tensor_parallel_size,
                                   std::span<const GenerateRequest> requests);

}  // namespace weft
