#include "data/gpt_dataset.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/check.hpp"
#include "data/numpy_random.hpp"

namespace weft {
namespace {

// The final epoch is shuffled apart when it gives fewer than this share of an epoch's samples.
constexpr double kSeparateFinalEpochBelow = 0.80;
constexpr std::int64_t kMaxEntries = std::numeric_limits<std::int32_t>::max();

struct EpochPlan {
  std::int64_t epochs = 1;
  bool separate_final = false;
  std::int64_t cuts_before_final = 0;  // used when the final epoch is apart
  std::int64_t cuts = 0;
};

EpochPlan plan_epochs(std::int64_t tokens, std::optional<std::int64_t> samples,
                      const GptDatasetOptions& options) {
  const std::int64_t length = options.sequence_length;
  const std::int64_t extra = options.add_extra_token ? 1 : 0;
  EpochPlan plan;
  if (samples) {
    const std::int64_t needed = *samples * length + extra;
    plan.epochs = std::max<std::int64_t>(1, (needed + tokens - 1) / tokens);
  }
  if (plan.epochs > 1) {
    plan.cuts_before_final = ((plan.epochs - 1) * tokens - extra) / length;
    const std::int64_t of_final = *samples - plan.cuts_before_final;
    const std::int64_t per_epoch = (tokens - extra) / length;
    plan.separate_final =
        of_final < static_cast<std::int64_t>(kSeparateFinalEpochBelow * static_cast<double>(per_epoch));
  }
  const std::int64_t usable = std::max<std::int64_t>(0, plan.epochs * tokens - extra);
  plan.cuts = options.drop_last_partial ? usable / length : (usable + length - 1) / length;
  return plan;
}

std::vector<std::int32_t> repeat_and_shuffle(std::span<const std::int32_t> chosen, const EpochPlan& plan,
                                             NumpyRandom& random) {
  std::vector<std::int32_t> documents;
  documents.reserve(chosen.size() * static_cast<std::size_t>(plan.epochs));
  for (std::int64_t epoch = 0; epoch < plan.epochs; ++epoch)
    documents.insert(documents.end(), chosen.begin(), chosen.end());
  const std::span<std::int32_t> all(documents);
  if (plan.separate_final) {
    random.shuffle(all.first(all.size() - chosen.size()));
    random.shuffle(all.last(chosen.size()));
  } else {
    random.shuffle(all);
  }
  return documents;
}

std::vector<GptIndex::Start> cut_stream(std::span<const std::int32_t> lengths,
                                        std::span<const std::int32_t> documents, std::int64_t cuts,
                                        const GptDatasetOptions& options) {
  const std::int64_t extra = options.add_extra_token ? 1 : 0;
  std::vector<GptIndex::Start> starts;
  starts.reserve(static_cast<std::size_t>(cuts) + 1);
  starts.push_back({});
  GptIndex::Start at;
  const std::int64_t last = std::ssize(documents) - 1;
  const auto length_at = [&](std::int64_t position) -> std::int64_t {
    return lengths[static_cast<std::size_t>(documents[static_cast<std::size_t>(position)])];
  };
  for (std::int64_t cut = 0; cut < cuts; ++cut) {
    std::int64_t missing = options.sequence_length + extra;
    while (true) {
      const std::int64_t here = length_at(at.position) - at.offset;
      if (missing <= here) {
        at.offset += missing - extra;
        break;
      }
      if (at.position == last) {  // the partial sample that may end the stream
        at.offset = length_at(at.position) - extra;
        break;
      }
      missing -= here;
      ++at.position;
      at.offset = 0;
    }
    starts.push_back(at);
  }
  return starts;
}

}  // namespace

GptIndex build_gpt_index(std::span<const std::int32_t> lengths, std::span<const std::int32_t> chosen,
                         std::optional<std::int64_t> samples, const GptDatasetOptions& options,
                         const std::string& source) {
  WEFT_CHECK(options.sequence_length > 0, "sequence length {}", options.sequence_length);
  std::int64_t tokens = 0;
  for (const std::int32_t d : chosen) tokens += lengths[static_cast<std::size_t>(d)];
  if (tokens == 0)
    config_fail("{}: the {} documents chosen hold 0 tokens; no sample of {} tokens can be made", source,
                chosen.size(), options.sequence_length);
  const EpochPlan plan = plan_epochs(tokens, samples, options);
  if (plan.cuts == 0)
    config_fail(
        "{}: {} tokens are less than one sample of sequence length {}{}; use more data or a shorter sequence",
        source, tokens, options.sequence_length, options.add_extra_token ? " and its last label" : "");
  if (plan.epochs > kMaxEntries / std::ssize(chosen) || plan.cuts > kMaxEntries)
    config_fail(
        "{}: {} samples of sequence length {} need {} passes over {} documents ({} tokens): more than {} "
        "entries",
        source, plan.cuts, options.sequence_length, plan.epochs, chosen.size(), tokens, kMaxEntries);
  GptIndex index;
  index.epochs = plan.epochs;
  NumpyRandom random(options.seed);
  index.documents = repeat_and_shuffle(chosen, plan, random);
  index.starts = cut_stream(lengths, index.documents, plan.cuts, options);
  index.shuffle.resize(static_cast<std::size_t>(plan.cuts));
  std::iota(index.shuffle.begin(), index.shuffle.end(), 0u);
  const std::span<std::uint32_t> shuffle(index.shuffle);
  const auto before = static_cast<std::size_t>(plan.separate_final ? plan.cuts_before_final : plan.cuts);
  random.shuffle(shuffle.first(before));
  if (before < shuffle.size()) random.shuffle(shuffle.subspan(before));
  return index;
}

GptDataset::GptDataset(std::shared_ptr<const TokenSource> source, std::span<const std::int32_t> documents,
                       std::optional<std::int64_t> samples, const GptDatasetOptions& options)
    : source_(std::move(source)),
      options_(options),
      index_(build_gpt_index(source_->lengths(), documents, samples, options, source_->name())) {}

void GptDataset::append_part(std::int64_t position, std::int64_t offset, std::int64_t count,
                             GptSample& out) const {
  const std::int64_t document = index_.documents[static_cast<std::size_t>(position)];
  const std::size_t before = out.tokens.size();
  out.tokens.resize(before + static_cast<std::size_t>(count));
  const std::span<std::int32_t> part = std::span(out.tokens).subspan(before);
  source_->read(document, offset, part);
  if (options_.vocabulary > 0)
    for (std::size_t i = 0; i < part.size(); ++i)
      if (part[i] < 0 || part[i] >= options_.vocabulary)
        fail(
            "{}: document {}: id {} at position {} is outside the vocabulary of {}: give the tokenizer that "
            "made "
            "the data, or a larger --vocab-size",
            source_->name(), document, part[i], offset + static_cast<std::int64_t>(i), options_.vocabulary);
  if (options_.inter_document_masking)
    out.borders.push_back(static_cast<std::int32_t>(
        std::min(std::ssize(out.tokens), std::ptrdiff_t{options_.sequence_length})));
}

void GptDataset::sample(std::int64_t number, GptSample& out) const {
  WEFT_CHECK(number >= 0 && number < size(), "sample {} of {}", number, size());
  const std::size_t cut = index_.shuffle[static_cast<std::size_t>(number)];
  const GptIndex::Start begin = index_.starts[cut], end = index_.starts[cut + 1];
  const std::int64_t extra = options_.add_extra_token ? 1 : 0;
  const auto wanted = static_cast<std::size_t>(options_.sequence_length + extra);
  out.tokens.clear();
  out.tokens.reserve(wanted);
  out.borders.assign(1, 0);
  for (std::int64_t position = begin.position; position <= end.position; ++position) {
    const std::int64_t offset = position == begin.position ? begin.offset : 0;
    const auto document = static_cast<std::size_t>(index_.documents[static_cast<std::size_t>(position)]);
    const std::int64_t stop = position == end.position ? end.offset + extra : source_->lengths()[document];
    append_part(position, offset, stop - offset, out);
  }
  out.tokens.resize(wanted, options_.pad);
  const auto length = static_cast<std::size_t>(options_.sequence_length);
  out.labels.assign(out.tokens.begin() + 1, out.tokens.end());
  out.labels.resize(length, options_.pad);
  out.tokens.resize(length);
  mask_and_place(out);
}

void GptDataset::mask_and_place(GptSample& out) const {
  const std::size_t length = out.tokens.size();
  out.loss_mask.assign(length, 1.0f);
  out.position_ids.resize(length);
  std::size_t piece_start = 0, border = 1;
  for (std::size_t i = 0; i < length; ++i) {
    if (options_.inter_document_masking)
      for (; border < out.borders.size() && static_cast<std::size_t>(out.borders[border]) <= i; ++border)
        piece_start = i;
    out.position_ids[i] = static_cast<std::int32_t>(i - piece_start);
    if (options_.end_of_document && out.tokens[i] == *options_.end_of_document) {
      if (options_.mask_end_of_document) out.loss_mask[i] = 0.0f;
      if (options_.reset_position_ids) piece_start = i + 1;
      if (options_.reset_attention_mask && !options_.inter_document_masking)
        out.borders.push_back(static_cast<std::int32_t>(i + 1));
    }
    if (out.labels[i] == options_.pad) {
      out.loss_mask[i] = 0.0f;
      out.labels[i] = 0;
    }
    if (out.tokens[i] == options_.pad) out.tokens[i] = 0;
  }
  if (static_cast<std::size_t>(out.borders.back()) != length)
    out.borders.push_back(static_cast<std::int32_t>(length));
}

std::array<SplitRange, 3> split_ranges(const std::string& split, std::int64_t count) {
  std::array<double, 3> shares{};
  std::size_t parts = 0;
  const char* at = split.data();
  const char* const end = at + split.size();
  bool good = !split.empty();
  while (good) {
    double share = -1;
    const auto [stop, error] = std::from_chars(at, end, share);
    good = error == std::errc{} && share >= 0 && std::isfinite(share) && parts < 3;
    if (!good) break;
    shares[parts++] = share;
    if (stop == end) break;
    good = *stop == ',';
    at = stop + 1;
  }
  const double sum = shares[0] + shares[1] + shares[2];
  if (!good || !(sum > 0) || !std::isfinite(sum))
    config_fail("--split {}: expected one to three numbers, 0 or more and not all 0, like 969,30,1", split);
  std::array<SplitRange, 3> ranges;
  double cumulative = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto position = [count](double share) {
      return std::min(count, static_cast<std::int64_t>(std::nearbyint(share * static_cast<double>(count))));
    };
    ranges[i].begin = position(cumulative);
    cumulative += shares[i] / sum;
    ranges[i].end = position(cumulative);
  }
  return ranges;
}

GptSplits build_gpt_splits(std::shared_ptr<const TokenSource> source, const std::string& split, SplitBy by,
                           const std::array<std::optional<std::int64_t>, 3>& samples,
                           const GptDatasetOptions& options) {
  constexpr std::array<const char*, 3> kNames{"training", "validation", "test"};
  constexpr std::array<const char*, 3> kFix{"", " or set --eval-iters 0", " or set --eval-iters 0"};
  const std::int64_t count = by == SplitBy::kTokens ? source->tokens() : source->documents();
  const auto ranges = split_ranges(split, count);
  GptSplits splits;
  const std::array<std::unique_ptr<GptDataset>*, 3> targets{&splits.train, &splits.validation, &splits.test};
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < 3; ++i) {
    if (samples[i] == 0) continue;
    const SplitRange range = ranges[i];
    if (range.begin >= range.end) {
      problems.push_back(
          fmt::format("--split {}: the {} split gets 0 of the {} {} of {}, but {} samples of it are needed; "
                      "give it a larger share{}",
                      split, kNames[i], count, by == SplitBy::kTokens ? "tokens" : "documents",
                      source->name(), samples[i] ? std::to_string(*samples[i]) : "some", kFix[i]));
      continue;
    }
    GptDatasetOptions part_options = options;
    if (i != 1) part_options.drop_last_partial = true;
    std::shared_ptr<const TokenSource> part = source;
    SplitRange documents = range;
    if (by == SplitBy::kTokens) {
      part = std::make_shared<TokenRange>(source, range.begin, range.end);
      documents = {0, part->documents()};
    }
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(documents.end - documents.begin));
    std::iota(chosen.begin(), chosen.end(), static_cast<std::int32_t>(documents.begin));
    try {
      *targets[i] = std::make_unique<GptDataset>(part, chosen, samples[i], part_options);
    } catch (const ConfigError& error) {
      for (const auto& problem : error.problems)
        problems.push_back(
            fmt::format("{} split (--split {}, {} documents): {}", kNames[i], split, chosen.size(), problem));
    }
  }
  if (!problems.empty()) throw ConfigError(problems);
  return splits;
}

}  // namespace weft
