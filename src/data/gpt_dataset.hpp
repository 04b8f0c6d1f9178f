// GptDataset: fixed-length training samples cut from a stream of shuffled documents, sample for sample the
// order of Megatron Core's GPTDataset. The documents are repeated for as many epochs as the requested samples
// need, shuffled, joined and cut every sequence_length tokens; the cuts are shuffled again. Both shuffles
// draw from one NumpyRandom.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/token_source.hpp"

namespace weft {

struct GptDatasetOptions {
  std::int64_t sequence_length = 0;
  std::uint32_t seed = 1234;
  // A sample takes one token more than it has positions, so that the last position has a label; the next
  // sample begins with that token. Without it the last label of each sample is masked.
  bool add_extra_token = true;
  // Whether the tokens after the last full sample are left out. Only validation data may keep (and pad) them.
  bool drop_last_partial = true;
  // Ids must be below this; 0: not checked.
  std::int64_t vocabulary = 0;
  // The id of padding. Where a label has it the loss is masked; ids that equal it become 0.
  std::int32_t pad = -1;
  // The id after each document, for the three options that follow it; none: they do nothing.
  std::optional<std::int32_t> end_of_document;
  bool reset_position_ids = false;    // positions start at 0 after each end_of_document
  bool reset_attention_mask = false;  // documents are kept apart at each end_of_document
  bool mask_end_of_document = false;  // no loss where the input token is end_of_document
  // Documents are kept apart at their true borders, and positions start at 0 there.
  bool inter_document_masking = false;
};

// The three tables of the sample order.
struct GptIndex {
  struct Start {
    std::int64_t position = 0;  // in `documents`
    std::int64_t offset = 0;    // in that document, tokens
    bool operator==(const Start&) const = default;
  };
  std::int64_t epochs = 1;
  std::vector<std::int32_t> documents;  // every epoch's documents, shuffled
  std::vector<Start> starts;            // of each cut, and of the end: cuts + 1
  std::vector<std::uint32_t> shuffle;   // sample number -> cut
};

// lengths: of all documents of the source; chosen: the documents to use. samples: how many are needed at
// least; none: what one epoch gives. ConfigErrors (no tokens, fewer tokens than one sample in the one epoch
// asked for, tables beyond 2^31 entries) name `source`.
GptIndex build_gpt_index(std::span<const std::int32_t> lengths, std::span<const std::int32_t> chosen,
                         std::optional<std::int64_t> samples, const GptDatasetOptions& options,
                         const std::string& source);

struct GptSample {
  std::vector<std::int32_t> tokens;        // [sequence_length]
  std::vector<std::int32_t> labels;        // [sequence_length]
  std::vector<float> loss_mask;            // [sequence_length] 0 or 1
  std::vector<std::int32_t> position_ids;  // [sequence_length]
  // Borders of the pieces that attention keeps apart: 0, ..., sequence_length, ascending (equal ones are
  // empty pieces). Just {0, sequence_length} unless an option asks for more.
  std::vector<std::int32_t> borders;
};

// Training samples by number: one dataset, or a blend of several.
class SampleSet {
 public:
  virtual ~SampleSet() = default;
  virtual std::int64_t size() const = 0;
  // What all samples have in common: length, seed of their order, and so on.
  virtual const GptDatasetOptions& options() const = 0;
  // Where they come from, for messages.
  virtual std::string name() const = 0;
  // Fills `out`, reusing its memory; number in [0, size()). Any number of threads, each with its own `out`.
  // An id outside the vocabulary is an Error that names file, document, id and vocabulary.
  virtual void sample(std::int64_t number, GptSample& out) const = 0;
};

class GptDataset final : public SampleSet {
 public:
  // Builds the tables. documents: which of the source's documents to use.
  GptDataset(std::shared_ptr<const TokenSource> source, std::span<const std::int32_t> documents,
             std::optional<std::int64_t> samples, const GptDatasetOptions& options);

  std::int64_t size() const override { return static_cast<std::int64_t>(index_.shuffle.size()); }
  const GptDatasetOptions& options() const override { return options_; }
  std::string name() const override { return source_->name(); }
  void sample(std::int64_t number, GptSample& out) const override;
  const GptIndex& index() const { return index_; }
  const TokenSource& source() const { return *source_; }

 private:
  void append_part(std::int64_t position, std::int64_t offset, std::int64_t count, GptSample& out) const;
  void mask_and_place(GptSample& out) const;

  std::shared_ptr<const TokenSource> source_;
  GptDatasetOptions options_;
  GptIndex index_;
};

// Half-open ranges of `count` items for train, validation and test by a split like "969,30,1" (missing parts
// are 0; rounding half to even of the cumulative shares). A ConfigError when the text is no such list or has
// no positive part.
struct SplitRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const SplitRange&) const = default;
};
std::array<SplitRange, 3> split_ranges(const std::string& split, std::int64_t count);

enum class SplitBy {
  kDocuments,  // whole documents, as Megatron does
  kTokens      // token positions: for one long text
};

struct GptSplits {
  // Null where 0 samples were asked for.
  std::unique_ptr<GptDataset> train, validation, test;
};

// samples: needed of train, validation, test; 0: this part is not used; none: one epoch. drop_last_partial
// holds for validation only. All parts that cannot give their samples are reported in one ConfigError, naming
// the part, its documents and tokens, and the split.
GptSplits build_gpt_splits(std::shared_ptr<const TokenSource> source, const std::string& split, SplitBy by,
                           const std::array<std::optional<std::int64_t>, 3>& samples,
                           const GptDatasetOptions& options);

}  // namespace weft
