// OptionSet: the options of one subcommand. Each is declared once, bound to the variable it sets; the command
// line, TOML files, presets, --help and --print-config all read that one table. A variable's value at
// declaration is its default.
//
//   OptionSet options("weft train", "trains a model");
//   options.topic("model");
//   options.integer("num-layers", config.num_layers, {1}, "transformer layers");
//   options.parse(args);
//
// Sources, later ones win: preset, file of --config, command line. Whatever is wrong in all of them is
// reported together.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

// Bounds of an integer option, both included. The upper one is what sizes can be without overflow in
// products.
struct Integers {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = (std::int64_t{1} << 31) - 1;
};

// Bounds of a real option; infinities and NaN never fit.
struct Reals {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;  // the bound itself does not fit

  static Reals positive() { return {.low = 0, .low_open = true}; }
  static Reals non_negative() { return {.low = 0}; }
  static Reals below_one() { return {.low = 0, .high = 1, .high_open = true}; }  // [0, 1)
};

class OptionSet {
 public:
  enum class Request { kRun, kHelp, kPrintConfig };
  using Args = std::span<const std::string>;

  struct Option;
  // What a declaration returns, to add to it: options.text("input", …).required();
  class Declared {
   public:
    explicit Declared(Option& option) : option_(option) {}
    Declared& required();
    // Other spellings that people try: never accepted, but they lead to the suggestion of this option.
    Declared& also(std::vector<std::string> spellings);
    // What holds when it is not given, where the variable's value does not say it.
    Declared& otherwise(std::string text);
    // Its value may be left out on the command line, and is then this one.
    Declared& alone_means(std::string value);

   private:
    Option& option_;
  };

  // `program` is used in the usage line ("weft train").
  OptionSet(std::string program, std::string summary);
  ~OptionSet();
  OptionSet(OptionSet&&) noexcept;

  // Options declared from here on belong to it: a paragraph of --help and a table of TOML files.
  void topic(std::string name);

  // --name, --no-name (and for "no-name": --name), --name=true|false.
  Declared flag(std::string name, bool& variable, std::string help, bool given_means = true);
  Declared integer(std::string name, std::int64_t& variable, Integers range, std::string help);
  // Exactly three.
  Declared integers(std::string name, std::array<std::int64_t, 3>& variable, Integers range,
                    std::string help);
  Declared real(std::string name, double& variable, Reals range, std::string help);
  Declared text(std::string name, std::string& variable, std::string value, std::string help);
  // One or more words, up to the next option.
  Declared texts(std::string name, std::vector<std::string>& variable, std::string value, std::string help);
  template <class Enum>
  Declared choice(const std::string& name, Enum& variable, std::vector<std::pair<std::string, Enum>> values,
                  const std::string& help) {
    std::vector<std::string> names;
    for (const auto& [text, value] : values) names.push_back(text);
    return choice_by_number(
        name, std::move(names),
        [&variable, values] {
          std::size_t i = 0;
          while (i < values.size() && values[i].second != variable) ++i;
          return i;
        },
        [&variable, values](std::size_t i) { variable = values[i].second; }, help);
  }
  // A flag that stands for values of other options: {"activation", "silu"} …; --no-name stands for
  // `otherwise`.
  using Values = std::vector<std::pair<std::string, std::string>>;
  Declared shorthand(std::string name, Values values, Values otherwise, std::string help);
  // An argument without a name, in the order of declaration; it must be given.
  void argument(std::string value, std::string& variable, std::string help);

  // Adds --config, --preset and --print-config. Looks presets up by name: their TOML text, or none.
  void allow_files(std::function<std::optional<std::string>(const std::string&)> preset,
                   std::vector<std::string> preset_names);

  // Sets the variables. `check` may say what is wrong with their combination; what it says about an option
  // that could not be read itself is left out. Throws one ConfigError with every problem; the variables are
  // then not to be used. Reads files, writes none. --help is answered before anything is checked.
  Request parse(Args args, const std::function<std::vector<std::string>()>& check = {});
  // Whether any source of the last parse() named the option.
  bool given(std::string_view name) const;

  std::string help() const;
  // The variables now, as TOML that sets them to the same values. Left out: those that are not given and have
  // no value.
  std::string to_toml() const;

 private:
  struct State;
  Declared choice_by_number(std::string name, std::vector<std::string> names,
                            std::function<std::size_t()> get, std::function<void(std::size_t)> set,
                            std::string help);

  std::unique_ptr<State> state_;
};

}  // namespace weft
