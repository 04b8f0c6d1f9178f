// Tokenizer files: tokenizer.json both ways, vocab.json + merges.txt one way.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "core/check.hpp"
#include "data/byte_level.hpp"
#include "data/files.hpp"
#include "data/splitter.hpp"
#include "data/tokenizer.hpp"

namespace weft {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Far above any vocabulary: a bound on what a damaged file can make us allocate.
constexpr std::int64_t kMostIds = std::int64_t{1} << 24;

std::string brief(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

// Reads one tokenizer.json, refusing what would change the ids and is not done here.
class JsonReader {
 public:
  JsonReader(const json& root, std::string name) : root_(root), name_(std::move(name)) {}

  TokenizerModel read() {
    if (!root_.is_object()) config_fail("{}: expected a JSON object", name_);
    if (const json* normalizer = present(root_, "normalizer"))
      if (type_of(*normalizer) != "Sequence" || !normalizer->value("normalizers", json::array()).empty())
        refuse("normalizer", *normalizer, "none");
    for (const char* field : {"truncation", "padding"})
      if (const json* value = present(root_, field)) refuse(field, *value, "none");
    read_model();
    read_pre_tokenizer();
    read_added_tokens();
    if (const json* decoder = present(root_, "decoder");
        decoder != nullptr && type_of(*decoder) != "ByteLevel")
      refuse("decoder", *decoder, "ByteLevel");
    if (const json* post = present(root_, "post_processor")) read_post_processor(*post);
    return std::move(model_);
  }

 private:
  [[noreturn]] void refuse(const std::string& field, const json& value, const char* supported) const {
    config_fail("{}: {}: {} is not supported (supported: {})", name_, field, brief(value), supported);
  }
  // Null when the field is missing or null.
  static const json* present(const json& object, const std::string& field) {
    const auto at = object.is_object() ? object.find(field) : object.end();
    return at == object.end() || at->is_null() ? nullptr : &*at;
  }
  static std::string type_of(const json& part) {
    const json* type = present(part, "type");
    return type != nullptr && type->is_string() ? type->get<std::string>() : std::string();
  }
  bool flag(const json& object, const std::string& where, const char* field, bool otherwise) const {
    const json* value = present(object, field);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(where + "." + field, *value, "true or false");
    return value->get<bool>();
  }
  const json& array(const json& object, const std::string& where, const char* field) const {
    const json* value = present(object, field);
    if (value == nullptr || !value->is_array())
      config_fail("{}: {}.{}: expected a list, found {}", name_, where, field,
                  value ? brief(*value) : "nothing");
    return *value;
  }
  std::int32_t id_of(const json& value, const std::string& where) const {
    if (!value.is_number_integer() || value < 0 || value >= kMostIds)
      config_fail("{}: {}: expected an id from 0 to {}, found {}", name_, where, kMostIds - 1, brief(value));
    return value.get<std::int32_t>();
  }
  std::string text_of(const json& value, const std::string& where) const {
    if (!value.is_string()) config_fail("{}: {}: expected a string, found {}", name_, where, brief(value));
    return value.get<std::string>();
  }

  void read_model() {
    const json* model = present(root_, "model");
    if (model == nullptr) config_fail("{}: model: missing", name_);
    // Old files leave the type out; a vocabulary with merges is BPE.
    if (const std::string type = type_of(*model);
        type != "BPE" && !(type.empty() && model->contains("merges")))
      refuse("model.type", model->value("type", json()), "BPE");
    for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json* value = present(*model, field); value != nullptr && *value != "")
        refuse(std::string("model.") + field, *value, "none");
    if (const json* dropout = present(*model, "dropout"); dropout != nullptr && *dropout != 0.0)
      refuse("model.dropout", *dropout, "none");
    if (flag(*model, "model", "byte_fallback", false)) refuse("model.byte_fallback", true, "false");
    model_.ignore_merges = flag(*model, "model", "ignore_merges", false);
    const json* vocab = present(*model, "vocab");
    if (vocab == nullptr || !vocab->is_object()) config_fail("{}: model.vocab: expected an object", name_);
    read_vocab(*vocab);
    const json& merges = array(*model, "model", "merges");
    model_.merges.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) read_merge(merges[i], fmt::format("model.merges[{}]", i));
  }

 public:
  void read_vocab(const json& vocab) {
    std::int64_t highest = -1;
    for (const auto& [spelling, id] : vocab.items())
      highest = std::max<std::int64_t>(highest, id_of(id, fmt::format("model.vocab[\"{}\"]", spelling)));
    model_.tokens.resize(static_cast<std::size_t>(highest + 1));
    ids_.reserve(vocab.size());
    for (const auto& [spelling, value] : vocab.items()) {
      const auto id = value.get<std::int32_t>();
      std::string& token = model_.tokens[static_cast<std::size_t>(id)];
      if (!token.empty())
        config_fail("{}: model.vocab: id {} belongs to \"{}\" and \"{}\"", name_, id,
                    byte_level_spelling(token), spelling);
      if (spelling.empty()) config_fail("{}: model.vocab: id {} is an empty string", name_, id);
      token = byte_level_bytes(spelling).value_or(spelling);
      ids_.emplace(spelling, id);
    }
  }

  void read_merge(const json& merge, const std::string& where) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2) {
      left = text_of(merge[0], where);
      right = text_of(merge[1], where);
    } else {
      const std::string both = text_of(merge, where);
      const std::size_t space = both.find(' ');
      if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
        config_fail("{}: {}: expected two tokens with a space between, found \"{}\"", name_, where, both);
      left = both.substr(0, space);
      right = both.substr(space + 1);
    }
    const auto id = [&](const std::string& spelling) {
      const auto known = ids_.find(spelling);
      if (known == ids_.end()) config_fail("{}: {}: \"{}\" is not in the vocabulary", name_, where, spelling);
      return known->second;
    };
    model_.merges.push_back({id(left), id(right)});
  }

  TokenizerModel take() { return std::move(model_); }

 private:
  void read_pre_tokenizer() {
    const json* pre = present(root_, "pre_tokenizer");
    if (pre == nullptr) refuse("pre_tokenizer", json(), "ByteLevel, or a Sequence of Split and ByteLevel");
    std::vector<json> steps{*pre};
    if (type_of(*pre) == "Sequence")
      steps = array(*pre, "pre_tokenizer", "pretokenizers").get<std::vector<json>>();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::string where =
          steps.size() == 1 ? "pre_tokenizer" : fmt::format("pre_tokenizer.pretokenizers[{}]", i);
      const std::string type = type_of(steps[i]);
      const bool last = i + 1 == steps.size();
      if (type == "Split" && !last) {
        read_split(steps[i], where);
      } else if (type == "ByteLevel" && last) {
        model_.add_prefix_space = flag(steps[i], where, "add_prefix_space", true);
        if (model_.add_prefix_space && !model_.patterns.empty())
          refuse(where + ".add_prefix_space", true, "false after a Split");
        if (flag(steps[i], where, "use_regex", true)) model_.patterns.emplace_back(kGpt2Pattern);
      } else {
        refuse(where, steps[i], "Split steps and then one ByteLevel");
      }
    }
    if (steps.empty()) refuse("pre_tokenizer", *pre, "Split steps and then one ByteLevel");
  }

  void read_split(const json& split, const std::string& where) {
    const json* pattern = present(split, "pattern");
    const json* regex = pattern == nullptr ? nullptr : present(*pattern, "Regex");
    if (regex == nullptr) refuse(where + ".pattern", pattern ? *pattern : json(), "a Regex");
    if (const json behavior = split.value("behavior", json()); behavior != "Isolated")
      refuse(where + ".behavior", behavior, "Isolated");
    if (flag(split, where, "invert", false)) refuse(where + ".invert", true, "false");
    model_.patterns.push_back(text_of(*regex, where + ".pattern.Regex"));
  }

  void read_added_tokens() {
    const json* added = present(root_, "added_tokens");
    if (added == nullptr) return;
    if (!added->is_array()) refuse("added_tokens", *added, "a list");
    for (std::size_t i = 0; i < added->size(); ++i) {
      const json& token = (*added)[i];
      const std::string where = fmt::format("added_tokens[{}]", i);
      for (const char* field : {"single_word", "lstrip", "rstrip"})
        if (flag(token, where, field, false)) refuse(where + "." + field, true, "false");
      model_.added.push_back({id_of(token.value("id", json()), where + ".id"),
                              text_of(token.value("content", json()), where + ".content"),
                              flag(token, where, "special", false)});
    }
  }

  void read_post_processor(const json& post) {
    const std::string type = type_of(post);
    if (type == "Sequence") {
      for (const json& step : array(post, "post_processor", "processors")) read_post_processor(step);
    } else if (type == "TemplateProcessing") {
      read_template(post);
    } else if (type != "ByteLevel") {  // which only trims offsets
      refuse("post_processor", post, "ByteLevel and TemplateProcessing");
    }
  }

  void read_template(const json& post) {
    bool after = false;
    for (const json& item : array(post, "post_processor", "single")) {
      if (item.contains("Sequence")) {
        if (std::exchange(after, true)) refuse("post_processor.single", item, "one Sequence");
        continue;
      }
      const json* special = present(item, "SpecialToken");
      if (special == nullptr) refuse("post_processor.single", item, "Sequence and SpecialToken");
      const std::string name = text_of(special->value("id", json()), "post_processor.single.SpecialToken.id");
      const json known = post.value("special_tokens", json::object()).value(name, json());
      for (const json& id : array(known, fmt::format("post_processor.special_tokens[\"{}\"]", name), "ids"))
        (after ? model_.suffix : model_.prefix).push_back(id_of(id, "post_processor.special_tokens.ids"));
    }
    if (!after) refuse("post_processor.single", post.value("single", json()), "a template with a Sequence");
  }

  const json& root_;
  std::string name_;
  TokenizerModel model_;
  std::unordered_map<std::string, std::int32_t> ids_;  // by spelling
};

json parse(std::string_view text, const std::string& name) {
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    config_fail("{}: no valid JSON: {} (byte {})", name, error.what(), error.byte);
  }
}

ordered_json byte_level(bool add_prefix_space, bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

ordered_json pre_tokenizer_json(const TokenizerModel& model) {
  std::vector<std::string> splits = model.patterns;
  const bool use_regex = !splits.empty() && splits.back() == kGpt2Pattern;
  if (use_regex) splits.pop_back();
  const ordered_json last = byte_level(model.add_prefix_space, true, use_regex);
  if (splits.empty()) return last;
  ordered_json steps = ordered_json::array();
  for (const std::string& pattern : splits)
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back(last);
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

ordered_json template_json(const Tokenizer& tokenizer) {
  const TokenizerModel& model = tokenizer.model();
  ordered_json single = ordered_json::array(), pair = ordered_json::array(),
               specials = ordered_json::object();
  const auto put_special = [&](ordered_json& to, std::int32_t id, int type) {
    const std::string name = tokenizer.token_spelling(id);
    to.push_back({{"SpecialToken", {{"id", name}, {"type_id", type}}}});
    specials[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  };
  const auto put_text = [&](ordered_json& to, const char* which, int type) {
    for (const std::int32_t id : model.prefix) put_special(to, id, type);
    to.push_back({{"Sequence", {{"id", which}, {"type_id", type}}}});
    for (const std::int32_t id : model.suffix) put_special(to, id, type);
  };
  put_text(single, "A", 0);
  put_text(pair, "A", 0);
  put_text(pair, "B", 1);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", specials}};
}

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& name) {
  const json root = parse(text, name);
  return Tokenizer(JsonReader(root, name).read(), name);
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    if (std::filesystem::exists(path / "tokenizer.json", ignored)) return load(path / "tokenizer.json");
    if (std::filesystem::exists(path / "vocab.json", ignored) &&
        std::filesystem::exists(path / "merges.txt", ignored)) {
      const std::array<std::string, 1> specials{"<|endoftext|>"};
      return load_vocab_and_merges(path / "vocab.json", path / "merges.txt", specials);
    }
    config_fail("{}: holds neither tokenizer.json nor vocab.json and merges.txt", path.string());
  }
  const MappedFile file(path);
  return from_json(file.text(), path.string());
}

Tokenizer Tokenizer::load_vocab_and_merges(const std::filesystem::path& vocab,
                                           const std::filesystem::path& merges,
                                           std::span<const std::string> special_tokens) {
  const json root = parse(MappedFile(vocab).text(), vocab.string());
  if (!root.is_object()) config_fail("{}: expected an object of tokens and ids", vocab.string());
  JsonReader reader(root, vocab.string());
  reader.read_vocab(root);
  InputFile lines(merges);
  std::string line;
  for (std::size_t number = 1; lines.line(line); ++number) {
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    if (line.empty() || line.starts_with("#version")) continue;
    reader.read_merge(line, fmt::format("{} line {}", merges.string(), number));
  }
  TokenizerModel model = reader.take();
  model.patterns.emplace_back(kGpt2Pattern);
  auto next = static_cast<std::int32_t>(model.tokens.size());
  for (const std::string& content : special_tokens) {
    const auto known = std::find(model.tokens.begin(), model.tokens.end(), content);
    const bool found = known != model.tokens.end();
    model.added.push_back(
        {found ? static_cast<std::int32_t>(known - model.tokens.begin()) : next++, content, true});
  }
  return Tokenizer(std::move(model), vocab.string());
}

std::string Tokenizer::to_json() const {
  const TokenizerModel& model = this->model();
  ordered_json added = ordered_json::array(), vocab = ordered_json::object(), merges = ordered_json::array();
  for (const auto& token : model.added)
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", token.special}});
  // ordered_json looks a new key up among all old ones; the pairs are distinct, so build them as a list.
  auto& entries = vocab.get_ref<ordered_json::object_t&>();
  for (std::size_t id = 0; id < model.tokens.size(); ++id)
    if (!model.tokens[id].empty())
      static_cast<std::vector<ordered_json::object_t::value_type>&>(entries).emplace_back(
          byte_level_spelling(model.tokens[id]), id);
  for (const auto& [left, right] : model.merges)
    merges.push_back({byte_level_spelling(model.tokens[static_cast<std::size_t>(left)]),
                      byte_level_spelling(model.tokens[static_cast<std::size_t>(right)])});
  const bool templated = !model.prefix.empty() || !model.suffix.empty();
  ordered_json root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = std::move(added);
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = pre_tokenizer_json(model);
  const ordered_json offsets = byte_level(true, false, true);
  root["post_processor"] = offsets;
  if (templated)
    root["post_processor"] = {{"type", "Sequence"},
                              {"processors", ordered_json::array({offsets, template_json(*this)})}};
  root["decoder"] = byte_level(true, true, true);
  root["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", model.ignore_merges}};
  root["model"]["vocab"] = std::move(vocab);
  root["model"]["merges"] = std::move(merges);
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void Tokenizer::save(const std::filesystem::path& path) const {
  write_file(path, to_json());
}

}  // namespace weft
