// RunData: what a run trains on and validates with, opened once before anything else and shared, read-only,
// by the ranks of this process.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/loader.hpp"
#include "train/config.hpp"

namespace weft {

// Global samples in order. One reader per rank; the source outlives its readers.
class SampleReader {
 public:
  virtual ~SampleReader() = default;
  virtual void load(const BatchShape& shape, std::int64_t consumed_samples, std::int64_t microbatch,
                    std::int64_t dp_rank, Batch& out) = 0;
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual std::unique_ptr<SampleReader> reader() const = 0;
  virtual std::int64_t samples() const = 0;  // that exist
};

// Of a text: what its validation part scores without a model.
struct TextBaselines {
  double unigram = 0, bigram = 0;  // nats per token
  double bytes_per_token = 0;      // of the validation part
};

struct RunData {
  std::unique_ptr<SampleSource> training;
  std::unique_ptr<SampleSource> validation;  // null: no validation
  bool whole_validation = false;             // the last evaluation covers all of it (a text file's)
  std::optional<TextBaselines> baselines;    // --text-file
  std::string tokenizer_json;                // copied into checkpoints; empty: unknown
};

// Opens config.data and fills in what only the data can tell: vocab_size of a text's tokenizer, seq_length
// and global_batch_size of given batches, train_iters. ConfigErrors name the option or file.
RunData open_run_data(TrainConfig& config);
// What every run begins with: the model of --load, the data, defaults filled in, and the device. A
// ConfigError lists all that is wrong with the configuration.
RunData begin_run(TrainConfig& config, int ranks_on_machine);

}  // namespace weft
