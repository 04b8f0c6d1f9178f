// The inside of OptionSet, shared by its .cpp files.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/option_set.hpp"

namespace weft {

// A word of the command line, or a scalar of a TOML file.
struct OptionWord {
  enum class Type { kUntyped, kBool, kInteger, kReal, kText };
  std::string text;
  Type type = Type::kUntyped;
  bool operator==(const OptionWord& other) const { return text == other.text; }

  // As TOML writes it; untyped words as they are.
  std::string written() const;
};
using OptionWords = std::vector<OptionWord>;

struct OptionSet::Option {
  std::string name;   // "num-layers"
  std::string value;  // what --help writes for the value; empty: a flag
  std::string help;
  std::size_t min_words = 1, max_words = 1;  // 0: a flag
  // Sets the variable; or leaves it alone and returns what is needed ("an integer from 1 to 9").
  std::function<std::string(const OptionWords&)> set{};
  // The variable's value; what set() refuses, or no words, is a variable without a value.
  std::function<OptionWords()> get{};

  std::string topic{};
  std::vector<std::string> choices{};  // of a choice
  std::vector<std::string> also{};
  std::string default_text{};
  bool required = false;
  bool command_line_only = false;
  bool shorthand = false;
  Values when_on{}, when_off{};  // of a shorthand

  bool is_flag() const { return max_words == 0; }
};

struct TomlEntry;

struct OptionSet::State {
  struct Assignment {
    Option* option = nullptr;
    OptionWords words;    // of a flag: one, "true" or "false"
    std::string spelled;  // "--no-bf16", "bf16"; a shorthand's name in place of the option it stands for
    std::string place;    // "run.toml:3: ", or nothing
    std::string describe() const;
  };
  struct Source {
    std::vector<Assignment> assignments;
  };
  struct Argument {
    std::string value;
    std::string* variable = nullptr;
    std::string help;
  };

  std::string program, summary, topic = "general";
  std::vector<std::string> topics;
  std::vector<std::unique_ptr<Option>> options;
  std::vector<Argument> arguments;
  bool files = false;
  std::function<std::optional<std::string>(const std::string&)> preset_text;
  std::vector<std::string> preset_names;
  std::string config_file, preset;
  bool print_config = false;

  std::vector<std::string> problems;
  std::set<std::string, std::less<>> given;     // options that some source named
  std::set<std::string, std::less<>> doubtful;  // options that may have been meant or could not be read
  bool unreadable = false;                      // a whole source

  Declared declare(Option option);
  // The option of a name or of its negation ("no-bf16"), and whether it is the latter.
  std::pair<Option*, bool> find(std::string_view name) const;
  // The nearest option's name, which becomes doubtful; empty: none is near.
  std::string nearest(const std::string& name);
  void assign(Assignment assignment, Source& source);
  void read_command_line(Args args, Source& source);
  void read_toml(const std::string& name, std::string_view text, Source& source);
  void read_toml_entry(const TomlEntry& entry, Source& source);
  void apply(const Source& source);
};

// "lr_decay_iters" for "lr-decay-iters", and back.
std::string toml_key(std::string_view name);
std::string option_name(std::string_view key);

}  // namespace weft
