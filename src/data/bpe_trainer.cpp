#include "data/bpe_trainer.hpp"

#include <algorithm>
#include <numeric>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/check.hpp"
#include "core/log.hpp"
#include "data/byte_level.hpp"
#include "data/files.hpp"
#include "data/splitter.hpp"
#include "data/text_corpus.hpp"

namespace weft {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;
// A text without any place that is safe to cut is cut at this size all the same.
constexpr std::size_t kLongestUncut = std::size_t{64} << 20;

struct BytesHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view bytes) const { return std::hash<std::string_view>{}(bytes); }
};

// A line end between two visible ASCII characters is a piece of its own wherever the text is cut after it, so
// the words on both sides are those of the whole text. 0: there is none.
std::size_t last_safe_cut(std::string_view text) {
  const auto visible = [](char c) { return c > 0x20 && c < 0x7f; };
  for (std::size_t i = text.size(); i-- > 2;)
    if (text[i - 1] == '\n' && visible(text[i - 2]) && visible(text[i])) return i;
  return 0;
}

struct Pair {
  std::int32_t left, right;
  bool operator<(const Pair& other) const {
    return left != other.left ? left < other.left : right < other.right;
  }
};

// The words as id sequences, and the frequency of every adjacent pair, kept up to date as pairs are merged.
class PairCounts {
 public:
  explicit PairCounts(const std::unordered_map<std::string, std::int64_t, BytesHash, std::equal_to<>>& words,
                      const std::array<std::int32_t, 256>& byte_ids) {
    for (const auto& [text, count] : words) {
      words_.push_back(
          {static_cast<std::int64_t>(ids_.size()), static_cast<std::int32_t>(text.size()), count});
      for (const char c : text) ids_.push_back(byte_ids[static_cast<unsigned char>(c)]);
    }
    for (std::size_t w = 0; w < words_.size(); ++w) {
      const std::int32_t* ids = ids_.data() + words_[w].begin;
      for (std::int32_t i = 0; i + 1 < words_[w].size; ++i)
        change({ids[i], ids[i + 1]}, words_[w].count, static_cast<std::int32_t>(w));
    }
    offer_raised();
  }

  // The most frequent pair and its count; count 0 when there is none.
  std::pair<Pair, std::int64_t> most_frequent() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      Info& info = infos_[static_cast<std::size_t>(top.info)];
      if (top.count == info.count && top.count > 0) return {top.pair, top.count};
      queue_.pop();
      if (info.count > 0) queue_.push({info.count, top.pair, top.info});
    }
    return {Pair{-1, -1}, 0};
  }

  // Replaces the pair by `result` in every word.
  void merge(Pair pair, std::int32_t result) {
    Info& info = infos_[static_cast<std::size_t>(slot(pair))];
    const std::vector<std::int32_t> where = std::move(info.words);
    info.words.clear();
    for (const std::int32_t w : where) merge_in(w, pair, result);
    // Overlaps ("aaa" holds two pairs, one is merged) leave a rest of the count.
    infos_[static_cast<std::size_t>(slot(pair))].count = 0;
    offer_raised();
  }

 private:
  struct Word {
    std::int64_t begin;  // in ids_
    std::int32_t size;
    std::int64_t count;
  };
  struct Info {
    std::int64_t count = 0;
    std::vector<std::int32_t> words;  // that hold it, or did
    Pair pair{-1, -1};
    bool raised = false;
  };
  struct Candidate {
    std::int64_t count;
    Pair pair;
    std::int32_t info;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : other.pair < pair;
    }
  };

  std::int32_t slot(Pair pair) {
    const auto key = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.left)) << 32) |
                     static_cast<std::uint32_t>(pair.right);
    const auto [at, fresh] = slots_.try_emplace(key, static_cast<std::int32_t>(infos_.size()));
    if (fresh) infos_.push_back({0, {}, pair, false});
    return at->second;
  }

  void change(Pair pair, std::int64_t by, std::int32_t word) {
    const std::int32_t index = slot(pair);
    Info& info = infos_[static_cast<std::size_t>(index)];
    info.count += by;
    if (by <= 0) return;
    if (info.words.empty() || info.words.back() != word) info.words.push_back(word);
    if (!std::exchange(info.raised, true)) raised_.push_back(index);
  }

  // Pairs that only sank are found when they come up in the queue.
  void offer_raised() {
    for (const std::int32_t index : raised_) {
      Info& info = infos_[static_cast<std::size_t>(index)];
      info.raised = false;
      if (info.count > 0) queue_.push({info.count, info.pair, index});
    }
    raised_.clear();
  }

  void merge_in(std::int32_t w, Pair pair, std::int32_t result) {
    Word& word = words_[static_cast<std::size_t>(w)];
    std::int32_t* const ids = ids_.data() + word.begin;
    std::int32_t kept = 0;
    for (std::int32_t i = 0; i < word.size; ++i) {
      if (i + 1 >= word.size || ids[i] != pair.left || ids[i + 1] != pair.right) {
        ids[kept++] = ids[i];
        continue;
      }
      if (kept > 0) {
        change({ids[kept - 1], pair.left}, -word.count, w);
        change({ids[kept - 1], result}, word.count, w);
      }
      if (i + 2 < word.size) {
        change({pair.right, ids[i + 2]}, -word.count, w);
        change({result, ids[i + 2]}, word.count, w);
      }
      ids[kept++] = result;
      ++i;
    }
    word.size = kept;
  }

  std::vector<std::int32_t> ids_;
  std::vector<Word> words_;
  std::vector<Info> infos_;
  std::unordered_map<std::uint64_t, std::int32_t> slots_;
  std::vector<std::int32_t> raised_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

struct BpeTrainer::State {
  Splitter splitter{std::string(kGpt2Pattern)};
  Splitter::Scratch scratch{splitter};
  std::vector<std::string_view> pieces;
  std::unordered_map<std::string, std::int64_t, BytesHash, std::equal_to<>> words;
};

BpeTrainer::BpeTrainer() : state_(std::make_unique<State>()) {}
BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::add(std::string_view text) {
  state_->pieces.clear();
  state_->splitter.split(text, state_->pieces, state_->scratch);
  for (const std::string_view piece : state_->pieces) {
    const auto known = state_->words.find(piece);
    if (known != state_->words.end()) {
      ++known->second;
    } else {
      state_->words.emplace(piece, 1);
    }
  }
}

void BpeTrainer::add_file(const std::filesystem::path& path) {
  if (is_jsonl(path)) {
    DocumentReader documents(path);
    for (RawDocument raw; documents.next(raw);) add(documents.text_of(std::move(raw)));
    return;
  }
  InputFile file(path);
  std::string text;
  while (file.read(text, kBlock) > 0) {
    std::size_t cut = last_safe_cut(text);
    if (cut == 0 && text.size() >= kLongestUncut) cut = text.size();
    if (cut == 0) continue;
    add(std::string_view(text).substr(0, cut));
    text.erase(0, cut);
  }
  add(text);
}

Tokenizer BpeTrainer::train(const BpeTrainOptions& options) const {
  const auto specials = static_cast<std::int64_t>(options.special_tokens.size());
  if (options.vocab_size < 256 + specials)
    config_fail("--vocab-size {}: 256 bytes and {} special tokens need at least {}", options.vocab_size,
                specials, 256 + specials);
  if (options.vocab_size > (std::int64_t{1} << 24))
    config_fail("--vocab-size {}: the most is {}", options.vocab_size, std::int64_t{1} << 24);
  if (std::set<std::string>(options.special_tokens.begin(), options.special_tokens.end()).size() !=
      options.special_tokens.size())
    config_fail("the same special token is given twice");
  TokenizerModel model;
  model.patterns.emplace_back(kGpt2Pattern);
  std::array<std::int32_t, 256> order{}, byte_ids{};
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [](std::int32_t a, std::int32_t b) {
    return byte_level_character(static_cast<unsigned char>(a)) <
           byte_level_character(static_cast<unsigned char>(b));
  });
  for (std::size_t id = 0; id < 256; ++id) {
    byte_ids[static_cast<std::size_t>(order[id])] = static_cast<std::int32_t>(id);
    model.tokens.emplace_back(1, static_cast<char>(order[id]));
  }
  std::unordered_map<std::string, std::int32_t> known;
  for (std::size_t id = 0; id < 256; ++id) known.emplace(model.tokens[id], static_cast<std::int32_t>(id));
  PairCounts counts(state_->words, byte_ids);
  while (std::ssize(model.tokens) < options.vocab_size - specials) {
    const auto [pair, count] = counts.most_frequent();
    if (count < std::max<std::int64_t>(1, options.min_frequency)) break;
    std::string joined = model.tokens[static_cast<std::size_t>(pair.left)] +
                         model.tokens[static_cast<std::size_t>(pair.right)];
    // Two pairs may spell the same token: it keeps its id.
    const auto [at, fresh] = known.try_emplace(joined, static_cast<std::int32_t>(model.tokens.size()));
    model.merges.push_back({pair.left, pair.right});
    if (fresh) model.tokens.push_back(std::move(joined));
    counts.merge(pair, at->second);
  }
  if (std::ssize(model.tokens) < options.vocab_size - specials)
    log_warn("the text gives {} tokens, not the {} of --vocab-size {}: no pair occurs {} times any more",
             std::ssize(model.tokens) + specials, options.vocab_size, options.vocab_size,
             std::max<std::int64_t>(1, options.min_frequency));
  auto next = static_cast<std::int32_t>(model.tokens.size());
  for (const std::string& content : options.special_tokens) {
    if (known.contains(content))
      config_fail("special token \"{}\" is also an ordinary token of this text; choose another", content);
    model.added.push_back({next++, content, true});
  }
  return Tokenizer(std::move(model));
}

Tokenizer train_bpe(std::span<const std::filesystem::path> files, const BpeTrainOptions& options) {
  if (files.empty()) config_fail("--input: no file to train the tokenizer on");
  BpeTrainer trainer;
  for (const auto& file : files) trainer.add_file(file);
  return trainer.train(options);
}

}  // namespace weft
