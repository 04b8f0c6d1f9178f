#include "train/given_batches.hpp"

#include <algorithm>

#include "io/safetensors.hpp"

namespace weft {
namespace {

std::vector<std::int32_t> read_ids(const SafetensorsFile& file, const std::string& name, std::int64_t low,
                                   std::int64_t vocabulary) {
  const Tensor t = file.get(name);
  std::vector<std::int32_t> out;
  out.reserve(static_cast<std::size_t>(t.elems()));
  const auto add = [&](std::int64_t id) {
    if (id < low || (vocabulary > 0 && id >= vocabulary)) {
      config_fail("{}: {} holds id {} at flat index {}, outside the vocabulary of {} ids{}",
                  file.path().string(), name, id, out.size(), vocabulary,
                  low < 0 ? " (labels may also be -100: ignored)" : "");
    }
    out.push_back(static_cast<std::int32_t>(id));
  };
  if (t.dtype() == DType::kI64) {
    for (const std::int64_t id : t.values<std::int64_t>()) add(id);
  } else if (t.dtype() == DType::kI32) {
    for (const std::int32_t id : t.values<std::int32_t>()) add(id);
  } else {
    config_fail("{}: {} is {}, expected I32 or I64", file.path().string(), name, name_of(t.dtype()));
  }
  return out;
}

class RowReader final : public SampleReader {
 public:
  RowReader(std::int64_t sequence, const std::vector<std::int32_t>& tokens,
            const std::vector<std::int32_t>& labels)
      : sequence_(sequence), tokens_(tokens), labels_(labels) {}

  void load(const BatchShape& shape, std::int64_t consumed, std::int64_t microbatch, std::int64_t dp_rank,
            Batch& out) override {
    out.sample_ids = microbatch_samples(shape, consumed, microbatch, dp_rank);
    out.rows = shape.micro_batch;
    out.sequence_length = sequence_;
    const auto size = static_cast<std::size_t>(out.rows * sequence_);
    out.tokens.assign(size, 0);
    out.labels.assign(size, kIgnoredLabel);
    out.target_tokens = 0;
    for (std::int64_t r = 0; r < out.rows; ++r) {
      const std::int64_t sample = out.sample_ids[static_cast<std::size_t>(r)];
      // Past the end: a last, shorter batch is filled with rows that count nowhere.
      if (sample == kNoSample || sample * sequence_ >= static_cast<std::int64_t>(tokens_.size())) continue;
      std::copy_n(tokens_.begin() + sample * sequence_, sequence_, out.tokens.begin() + r * sequence_);
      std::copy_n(labels_.begin() + sample * sequence_, sequence_, out.labels.begin() + r * sequence_);
    }
    for (const std::int32_t label : out.labels) out.target_tokens += label >= 0 ? 1 : 0;
  }

 private:
  std::int64_t sequence_;
  const std::vector<std::int32_t>& tokens_;
  const std::vector<std::int32_t>& labels_;
};

}  // namespace

GivenRows::GivenRows(const std::string& path, std::int64_t vocabulary) {
  const SafetensorsFile file(path);
  const Shape shape = file.get("input_ids").shape();
  if (shape.rank() != 2 && shape.rank() != 3) {
    config_fail("{}: input_ids has shape {}, expected [batches, rows, sequence] or [rows, sequence]", path,
                to_string(shape));
  }
  batches_ = shape.rank() == 3 ? shape[0] : 1;
  rows_ = batches_ * shape[-2];
  sequence_ = shape[-1];
  if (rows_ == 0 || sequence_ == 0)
    config_fail("{}: input_ids has shape {}: it is empty", path, to_string(shape));
  tokens_ = read_ids(file, "input_ids", 0, vocabulary);
  if (file.contains("labels")) {
    if (file.get("labels").shape() != shape) {
      config_fail("{}: labels has shape {}, input_ids {}: they must be equal", path,
                  to_string(file.get("labels").shape()), to_string(shape));
    }
    labels_ = read_ids(file, "labels", kIgnoredLabel, vocabulary);
    for (std::int32_t& label : labels_) {
      if (label < 0 && label != kIgnoredLabel) {
        config_fail("{}: labels holds {}: use -100 for positions that are ignored", path, label);
      }
    }
    return;
  }
  labels_ = tokens_;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const auto row = labels_.begin() + r * sequence_;
    std::rotate(row, row + 1, row + sequence_);
    row[sequence_ - 1] = kIgnoredLabel;
  }
}

std::unique_ptr<SampleReader> GivenRows::reader() const {
  return std::make_unique<RowReader>(sequence_, tokens_, labels_);
}

RunData open_given_batches(TrainConfig& config) {
  const std::string& path = config.data.batches;
  auto rows = std::make_unique<GivenRows>(path, config.model.vocab_size);
  const std::int64_t batch = rows->samples() / rows->batches();
  TrainingConfig& t = config.training;
  if (t.global_batch_size != 0 && t.global_batch_size != batch) {
    config_fail("--global-batch-size {} but --batches {} has {} rows a batch: leave the option out",
                t.global_batch_size, path, batch);
  }
  if (config.data.seq_length != 0 && config.data.seq_length != rows->sequence_length()) {
    config_fail("--seq-length {} but --batches {} has sequences of {}: leave the option out",
                config.data.seq_length, path, rows->sequence_length());
  }
  if (t.train_iters > rows->batches()) {
    config_fail("--train-iters {} but --batches {} holds {} batches", t.train_iters, path, rows->batches());
  }
  if (t.train_samples > rows->samples()) {
    config_fail("--train-samples {} but --batches {} holds {} rows", t.train_samples, path, rows->samples());
  }
  t.global_batch_size = batch;
  config.data.seq_length = rows->sequence_length();
  if (t.train_iters == 0 && t.train_samples == 0) t.train_iters = rows->batches();
  t.eval_iters = 0;
  RunData run;
  run.training = std::move(rows);
  return run;
}

}  // namespace weft
