#include "data/tokenizer.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/check.hpp"
#include "data/bpe_merge.hpp"
#include "data/byte_level.hpp"
#include "data/splitter.hpp"

namespace weft {
namespace {

struct BytesHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view bytes) const { return std::hash<std::string_view>{}(bytes); }
};

}  // namespace

struct Tokenizer::State {
  TokenizerModel model;
  std::int64_t size = 0;
  std::unordered_map<std::string_view, std::int32_t> ids;  // of model.tokens, whose strings it views
  std::array<std::int32_t, 256> byte_ids{};                // -1: the vocabulary lacks the byte
  PairTable merges{0};
  std::vector<Splitter> splitters;
  std::unordered_map<std::int32_t, std::size_t> added_by_id;
  // Indices of model.added, longest content first, by first byte.
  std::array<std::vector<std::size_t>, 256> added_by_byte;

  void index_tokens(const std::string& name);
  void index_merges(const std::string& name);
  void index_added(const std::string& name);
  const TokenizerModel::AddedToken* added_at(std::string_view text) const;
};

void Tokenizer::State::index_tokens(const std::string& name) {
  byte_ids.fill(-1);
  ids.reserve(model.tokens.size());
  for (std::size_t i = 0; i < model.tokens.size(); ++i) {
    const std::string& bytes = model.tokens[i];
    if (bytes.empty()) continue;
    const auto id = static_cast<std::int32_t>(i);
    if (const auto [at, fresh] = ids.emplace(bytes, id); !fresh)
      config_fail("{}: vocab: ids {} and {} are both \"{}\"", name, at->second, id,
                  byte_level_spelling(bytes));
    if (bytes.size() == 1) byte_ids[static_cast<unsigned char>(bytes[0])] = id;
  }
}

void Tokenizer::State::index_merges(const std::string& name) {
  merges = PairTable(model.merges.size());
  std::string joined;
  for (std::size_t rank = 0; rank < model.merges.size(); ++rank) {
    const auto [left, right] = model.merges[rank];
    for (const std::int32_t id : {left, right})
      if (id < 0 || static_cast<std::size_t>(id) >= model.tokens.size())
        config_fail("{}: merge {}: id {} is outside the vocabulary of {}", name, rank, id,
                    model.tokens.size());
    joined = model.tokens[static_cast<std::size_t>(left)] + model.tokens[static_cast<std::size_t>(right)];
    const auto result = ids.find(joined);
    if (result == ids.end())
      config_fail("{}: merge {}: its result \"{}\" is not in the vocabulary", name, rank,
                  byte_level_spelling(joined));
    merges.insert(left, right, {static_cast<std::int32_t>(rank), result->second});
  }
}

void Tokenizer::State::index_added(const std::string& name) {
  for (std::size_t i = 0; i < model.added.size(); ++i) {
    const auto& token = model.added[i];
    if (token.content.empty()) config_fail("{}: added token {} is empty", name, token.id);
    if (token.id < 0) config_fail("{}: added token \"{}\": id {}", name, token.content, token.id);
    if (const auto known = ids.find(token.content); known != ids.end() && known->second != token.id)
      config_fail("{}: added token \"{}\" has id {}, the vocabulary gives it {}", name, token.content,
                  token.id, known->second);
    const auto at = static_cast<std::size_t>(token.id);
    if (at < model.tokens.size() && !model.tokens[at].empty() && model.tokens[at] != token.content)
      config_fail("{}: id {} is the added token \"{}\" and the vocabulary's \"{}\"", name, token.id,
                  token.content, byte_level_spelling(model.tokens[at]));
    if (!added_by_id.emplace(token.id, i).second)
      config_fail("{}: two added tokens have id {}", name, token.id);
    added_by_byte[static_cast<unsigned char>(token.content[0])].push_back(i);
    size = std::max<std::int64_t>(size, token.id + std::int64_t{1});
  }
  for (auto& candidates : added_by_byte)
    std::stable_sort(candidates.begin(), candidates.end(), [this](std::size_t a, std::size_t b) {
      return model.added[a].content.size() > model.added[b].content.size();
    });
}

const TokenizerModel::AddedToken* Tokenizer::State::added_at(std::string_view text) const {
  for (const std::size_t i : added_by_byte[static_cast<unsigned char>(text[0])])
    if (text.starts_with(model.added[i].content)) return &model.added[i];
  return nullptr;
}

Tokenizer::Tokenizer(TokenizerModel model, const std::string& name) {
  auto state = std::make_unique<State>();
  state->model = std::move(model);
  state->size = static_cast<std::int64_t>(state->model.tokens.size());
  state->index_tokens(name);
  state->index_merges(name);
  state->index_added(name);
  for (const std::string& pattern : state->model.patterns) state->splitters.emplace_back(pattern);
  state_ = std::move(state);
  for (const auto* around : {&state_->model.prefix, &state_->model.suffix})
    for (const std::int32_t id : *around) token_bytes(id);
}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::int64_t Tokenizer::vocab_size() const {
  return state_->size;
}
const TokenizerModel& Tokenizer::model() const {
  return state_->model;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || id >= state_->size) fail("token id {} is outside the vocabulary of {}", id, state_->size);
  if (const auto added = state_->added_by_id.find(id); added != state_->added_by_id.end())
    return state_->model.added[added->second].content;
  const auto at = static_cast<std::size_t>(id);
  if (at >= state_->model.tokens.size() || state_->model.tokens[at].empty())
    fail("token id {} has no token in the vocabulary of {}", id, state_->size);
  return state_->model.tokens[at];
}

std::string Tokenizer::token_spelling(std::int32_t id) const {
  const std::string_view bytes = token_bytes(id);
  return state_->added_by_id.contains(id) ? std::string(bytes) : byte_level_spelling(bytes);
}

bool Tokenizer::is_special(std::int32_t id) const {
  const auto added = state_->added_by_id.find(id);
  return added != state_->added_by_id.end() && state_->model.added[added->second].special;
}

std::optional<std::int32_t> Tokenizer::find(std::string_view bytes) const {
  for (const auto& token : state_->model.added)
    if (token.content == bytes) return token.id;
  const auto known = state_->ids.find(bytes);
  return known == state_->ids.end() ? std::nullopt : std::optional(known->second);
}

std::optional<std::int32_t> Tokenizer::end_of_document() const {
  for (const std::string_view name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"})
    if (const auto id = find(name); id && is_special(*id)) return id;
  const auto is_special_token = [](const TokenizerModel::AddedToken& token) { return token.special; };
  const auto& added = state_->model.added;
  if (std::count_if(added.begin(), added.end(), is_special_token) != 1) return std::nullopt;
  return std::find_if(added.begin(), added.end(), is_special_token)->id;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool with_template) const {
  std::vector<std::int32_t> ids;
  if (with_template) ids = state_->model.prefix;
  Encoder(*this).encode(text, ids);
  if (with_template) ids.insert(ids.end(), state_->model.suffix.begin(), state_->model.suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    const std::string_view token = token_bytes(id);
    if (!skip_special || !is_special(id)) bytes += token;
  }
  return bytes;
}

// The words met so far and their ids. Full, it starts anew: a bound on memory that no result depends on.
struct Encoder::State {
  explicit State(const Tokenizer::State& tokenizer_state) : tokenizer(tokenizer_state) {
    for (const Splitter& splitter : tokenizer.splitters) scratches.emplace_back(splitter);
    forget();
  }

  static constexpr std::size_t kLongestRemembered = 64;
  static constexpr std::size_t kFewestSlots = std::size_t{1} << 10;
  static constexpr std::size_t kMostRemembered = std::size_t{1} << 17;
  struct Entry {
    std::size_t hash = 0;
    std::uint32_t text = 0, text_size = 0;  // in texts
    std::uint32_t ids = 0, ids_size = 0;    // in ids
  };

  void forget() {
    entries.assign(kFewestSlots, Entry{});
    texts.clear();
    ids.clear();
    count = 0;
  }
  void grow();
  void encode_plain(std::string_view text, std::vector<std::int32_t>& out);
  void encode_word(std::string_view word, std::vector<std::int32_t>& out);
  void merge_word(std::string_view word);

  const Tokenizer::State& tokenizer;
  std::vector<Splitter::Scratch> scratches;
  std::vector<std::string_view> pieces, next_pieces;
  std::string spaced;
  WordMerger merger;
  std::vector<std::int32_t> word_ids;
  std::vector<Entry> entries;
  std::string texts;
  std::vector<std::int32_t> ids;
  std::size_t count = 0;
};

void Encoder::State::encode_plain(std::string_view text, std::vector<std::int32_t>& out) {
  pieces.assign(1, text);
  for (std::size_t i = 0; i < scratches.size(); ++i) {
    next_pieces.clear();
    for (const std::string_view piece : pieces)
      tokenizer.splitters[i].split(piece, next_pieces, scratches[i]);
    std::swap(pieces, next_pieces);
  }
  for (const std::string_view piece : pieces) encode_word(piece, out);
}

void Encoder::State::encode_word(std::string_view word, std::vector<std::int32_t>& out) {
  if (word.size() > kLongestRemembered) {
    merge_word(word);
    out.insert(out.end(), word_ids.begin(), word_ids.end());
    return;
  }
  const std::size_t hash = std::hash<std::string_view>{}(word) | 1;  // 0: no entry
  std::size_t slot = (hash >> 1) & (entries.size() - 1);
  for (; entries[slot].hash != 0; slot = (slot + 1) & (entries.size() - 1)) {
    const Entry& entry = entries[slot];
    if (entry.hash != hash || entry.text_size != word.size() ||
        std::memcmp(texts.data() + entry.text, word.data(), word.size()) != 0)
      continue;
    out.insert(out.end(), ids.begin() + entry.ids, ids.begin() + entry.ids + entry.ids_size);
    return;
  }
  merge_word(word);
  out.insert(out.end(), word_ids.begin(), word_ids.end());
  entries[slot] = {hash, static_cast<std::uint32_t>(texts.size()), static_cast<std::uint32_t>(word.size()),
                   static_cast<std::uint32_t>(ids.size()), static_cast<std::uint32_t>(word_ids.size())};
  texts += word;
  ids.insert(ids.end(), word_ids.begin(), word_ids.end());
  if (++count == kMostRemembered) {
    forget();
  } else if (2 * count > entries.size()) {
    grow();
  }
}

void Encoder::State::grow() {
  std::vector<Entry> larger(4 * entries.size());
  for (const Entry& entry : entries) {
    if (entry.hash == 0) continue;
    std::size_t slot = (entry.hash >> 1) & (larger.size() - 1);
    while (larger[slot].hash != 0) slot = (slot + 1) & (larger.size() - 1);
    larger[slot] = entry;
  }
  entries = std::move(larger);
}

void Encoder::State::merge_word(std::string_view word) {
  word_ids.clear();
  if (tokenizer.model.ignore_merges)
    if (const auto known = tokenizer.ids.find(word); known != tokenizer.ids.end()) {
      word_ids.push_back(known->second);
      return;
    }
  for (const char c : word) {
    const std::int32_t id = tokenizer.byte_ids[static_cast<unsigned char>(c)];
    if (id < 0)
      fail("the tokenizer's vocabulary has no token for byte 0x{:02x}, which the text holds (in \"{}\")",
           static_cast<unsigned char>(c), utf8_lossy(word.substr(0, 40)));
    word_ids.push_back(id);
  }
  merger.merge(tokenizer.merges, word_ids);
}

Encoder::Encoder(const Tokenizer& tokenizer) : state_(std::make_unique<State>(*tokenizer.state_)) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;

void Encoder::encode(std::string_view text, std::vector<std::int32_t>& out) {
  State& s = *state_;
  const auto plain = [&](std::string_view part) {
    if (part.empty()) return;
    if (s.tokenizer.model.add_prefix_space && part[0] != ' ') {
      s.spaced.assign(1, ' ').append(part);
      part = s.spaced;
    }
    s.encode_plain(part, out);
  };
  if (s.tokenizer.model.added.empty()) return plain(text);
  std::size_t done = 0;
  for (std::size_t i = 0; i < text.size();) {
    const TokenizerModel::AddedToken* token = s.tokenizer.added_at(text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    plain(text.substr(done, i - done));
    out.push_back(token->id);
    done = i += token->content.size();
  }
  plain(text.substr(done));
}

}  // namespace weft
