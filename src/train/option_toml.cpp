// Options from and to TOML.
#include <toml++/toml.h>
#include <algorithm>

#include "core/check.hpp"
#include "train/nearest.hpp"
#include "train/option_state.hpp"

namespace weft {
namespace {

using Type = OptionWord::Type;

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// None: not a boolean, number or text.
std::optional<OptionWord> scalar(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return OptionWord{value->get() ? "true" : "false", Type::kBool};
  if (const auto* value = node.as_integer()) return OptionWord{std::to_string(value->get()), Type::kInteger};
  if (const auto* value = node.as_floating_point()) {
    std::string text = fmt::format("{}", value->get());
    if (text.find_first_not_of("-0123456789") == std::string::npos)
      text += ".0";  // as it was written: not an integer
    return OptionWord{text, Type::kReal};
  }
  if (const auto* value = node.as_string()) return OptionWord{value->get(), Type::kText};
  return std::nullopt;
}

std::string line_of(std::string_view text, std::size_t number) {
  std::size_t begin = 0;
  for (std::size_t line = 1; line < number && begin < text.size(); ++line) {
    begin = std::min(text.find('\n', begin), text.size() - 1) + 1;
  }
  std::string line(text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin));
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
  return line.size() > 80 ? line.substr(0, 77) + "..." : line;
}

}  // namespace

// One key of a file, with everything needed to report it.
struct TomlEntry {
  std::string key;
  std::string table;  // empty: top level
  const toml::node* node = nullptr;
  std::string place;

  std::string describe() const {
    const auto word = scalar(*node);
    return word ? fmt::format("{}{} = {}", place, key, word->written()) : place + key;
  }
};

std::string OptionWord::written() const {
  return type == Type::kText ? quoted(text) : text;
}

void OptionSet::State::read_toml(const std::string& name, std::string_view text, Source& source) {
  toml::table root;
  try {
    root = toml::parse(text, name);
  } catch (const toml::parse_error& e) {
    const auto line = e.source().begin.line;
    problems.push_back(fmt::format("{}:{}: not TOML: {} (the line is '{}')", name, line, e.description(),
                                   line_of(text, line)));
    unreadable = true;
    return;
  }
  if (root.empty()) {
    problems.push_back(name + ": holds no option");
    unreadable = true;
    return;
  }

  std::vector<TomlEntry> entries;
  const auto place_of = [&](const toml::node& node) {
    return fmt::format("{}:{}: ", name, node.source().begin.line);
  };
  for (const auto& [key, node] : root) {
    const std::string table(key.str());
    const auto* inner = node.as_table();
    if (inner == nullptr) {
      entries.push_back({table, "", &node, place_of(node)});
    } else if (std::find(topics.begin(), topics.end(), table) == topics.end()) {
      problems.push_back(fmt::format("{}unknown table [{}]{}", place_of(node), table,
                                     did_you_mean(nearest_name(table, topics))));
    } else {
      for (const auto& [inner_key, inner_node] : *inner) {
        entries.push_back({std::string(inner_key.str()), table, &inner_node, place_of(inner_node)});
      }
    }
  }
  // Tables are sorted by key; people read by line.
  std::stable_sort(entries.begin(), entries.end(), [](const TomlEntry& a, const TomlEntry& b) {
    return a.node->source().begin.line < b.node->source().begin.line;
  });

  for (const TomlEntry& entry : entries) read_toml_entry(entry, source);
}

void OptionSet::State::read_toml_entry(const TomlEntry& entry, Source& source) {
  const auto [option, negated] = find(option_name(entry.key));
  const std::string shown = entry.describe();
  if (option == nullptr || entry.key.find('-') != std::string::npos) {
    const std::string guess = option != nullptr ? entry.key : nearest(option_name(entry.key));
    problems.push_back(
        fmt::format("{}: unknown option {}{}", shown, entry.key, did_you_mean(toml_key(guess))));
    return;
  }
  if (option->command_line_only) {
    problems.push_back(fmt::format("{}: --{} belongs on the command line", shown, option->name));
    return;
  }
  if (!entry.table.empty() && entry.table != option->topic) {
    problems.push_back(fmt::format("{}: {} belongs under [{}] or above all tables, not under [{}]", shown,
                                   entry.key, option->topic, entry.table));
    doubtful.insert(option->name);
    return;
  }
  Assignment assignment{option, {}, entry.key, entry.place};
  const auto* array = entry.node->as_array();
  bool readable = true;
  const auto take = [&](const toml::node& node) {
    const auto word = scalar(node);
    if (word) assignment.words.push_back(*word);
    readable = readable && word;
  };
  if (array == nullptr) {
    take(*entry.node);
  } else {
    for (const toml::node& node : *array) take(node);
  }
  const std::size_t least = std::max<std::size_t>(option->min_words, 1);
  const std::size_t most = std::max<std::size_t>(option->max_words, 1);
  const std::size_t count = assignment.words.size();
  if (!readable || (array != nullptr && most == 1) || count < least || count > most) {
    problems.push_back(fmt::format("{}: {} is needed", shown,
                                   option->is_flag() ? "true or false"
                                   : least == 1      ? "a value"
                                                     : fmt::format("[{} values]", least)));
    doubtful.insert(option->name);
    return;
  }
  if (negated && assignment.words.front().type == Type::kBool) {
    OptionWord& word = assignment.words.front();
    word.text = word.text == "true" ? "false" : "true";
  }
  assign(std::move(assignment), source);
}

std::string OptionSet::to_toml() const {
  std::string out;
  for (const std::string& topic : state_->topics) {
    std::string lines;
    for (const auto& option : state_->options) {
      if (option->topic != topic || option->shorthand || topic == "configuration") continue;
      const OptionWords words = option->get();
      if (words.empty() || !option->set(words).empty()) continue;
      std::string value;
      for (const OptionWord& word : words) value += (value.empty() ? "" : ", ") + word.written();
      if (option->max_words > 1) value = "[" + value + "]";
      lines += fmt::format("{} = {}\n", toml_key(option->name), value);
    }
    if (!lines.empty()) out += fmt::format("{}[{}]\n{}", out.empty() ? "" : "\n", topic, lines);
  }
  return out;
}

}  // namespace weft
