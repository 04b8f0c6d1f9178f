#include "train/option_set.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/check.hpp"
#include "io/atomic_file.hpp"
#include "train/nearest.hpp"
#include "train/option_state.hpp"

namespace weft {
namespace {

using Type = OptionWord::Type;

std::string negation(std::string_view name) {
  return name.starts_with("no-") ? std::string(name.substr(3)) : "no-" + std::string(name);
}

template <class T>
std::optional<T> number_from(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool fits_type(const OptionWord& word, std::initializer_list<Type> types) {
  return word.type == Type::kUntyped || std::find(types.begin(), types.end(), word.type) != types.end();
}

std::string describe(const Integers& range) {
  if (range.low == std::numeric_limits<std::int64_t>::min()) {
    return fmt::format("an integer up to {}", range.high);
  }
  return fmt::format("an integer from {} to {}", range.low, range.high);
}

std::string describe(const Reals& range) {
  std::string text = "a number";
  if (std::isfinite(range.low))
    text += fmt::format("{} {}", range.low_open ? " above" : " of at least", range.low);
  if (std::isfinite(range.high)) {
    text += fmt::format("{}{} {}", std::isfinite(range.low) ? " and" : "",
                        range.high_open ? " below" : " at most", range.high);
  }
  return text;
}

std::optional<std::int64_t> integer_from(const OptionWord& word, const Integers& range) {
  const auto value = number_from<std::int64_t>(word.text);
  if (!value || !fits_type(word, {Type::kInteger}) || *value < range.low || *value > range.high) {
    return std::nullopt;
  }
  return value;
}

std::optional<double> real_from(const OptionWord& word, const Reals& range) {
  const auto value = number_from<double>(word.text);
  if (!value || !fits_type(word, {Type::kInteger, Type::kReal}) || !std::isfinite(*value))
    return std::nullopt;
  if (*value < range.low || (range.low_open && *value == range.low)) return std::nullopt;
  if (*value > range.high || (range.high_open && *value == range.high)) return std::nullopt;
  return value;
}

OptionWord bool_word(bool value) {
  return {value ? "true" : "false", Type::kBool};
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

// Whether `text` names --name as a whole word.
bool mentions(const std::string& text, const std::string& name) {
  const std::string word = "--" + name;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool goes_on = end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) ||
                                               text[end] == '-' || text[end] == '_');
    if (!goes_on) return true;
  }
  return false;
}

}  // namespace

std::string toml_key(std::string_view name) {
  std::string key(name);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

std::string option_name(std::string_view key) {
  std::string name(key);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// ---- declarations

OptionSet::Declared& OptionSet::Declared::required() {
  option_.required = true;
  option_.default_text = "must be given";
  return *this;
}

OptionSet::Declared& OptionSet::Declared::also(std::vector<std::string> spellings) {
  option_.also = std::move(spellings);
  return *this;
}

OptionSet::Declared& OptionSet::Declared::otherwise(std::string text) {
  option_.default_text = "default: " + std::move(text);
  return *this;
}

OptionSet::Declared& OptionSet::Declared::alone_means(std::string value) {
  option_.min_words = 0;
  option_.value = "[" + option_.value + "]";
  option_.set = [set = std::move(option_.set), value = std::move(value)](const OptionWords& words) {
    return set(words.empty() ? OptionWords{{value, Type::kText}} : words);
  };
  return *this;
}

OptionSet::OptionSet(std::string program, std::string summary) : state_(std::make_unique<State>()) {
  state_->program = std::move(program);
  state_->summary = std::move(summary);
}
OptionSet::~OptionSet() = default;
OptionSet::OptionSet(OptionSet&&) noexcept = default;

void OptionSet::topic(std::string name) {
  state_->topic = std::move(name);
}

OptionSet::Declared OptionSet::State::declare(Option option) {
  const auto [known, negated] = find(option.name);
  WEFT_CHECK(known == nullptr, "option --{} is declared twice", option.name);
  option.topic = topic;
  if (std::find(topics.begin(), topics.end(), topic) == topics.end()) topics.push_back(topic);
  if (option.default_text.empty() && option.get) {
    const OptionWords words = option.get();
    if (option.is_flag()) {
      option.default_text = words.front().text == "true" ? "default: on" : "default: off";
    } else if (!words.empty() && option.set(words).empty()) {
      for (const OptionWord& word : words) {
        option.default_text += (option.default_text.empty() ? "default: " : " ") + word.text;
      }
    }
  }
  options.push_back(std::make_unique<Option>(std::move(option)));
  return Declared(*options.back());
}

OptionSet::Declared OptionSet::flag(std::string name, bool& variable, std::string help, bool given_means) {
  Option option{
      .name = std::move(name), .value = {}, .help = std::move(help), .min_words = 0, .max_words = 0};
  option.set = [&variable, given_means](const OptionWords& words) -> std::string {
    const OptionWord& word = words.front();
    if (!fits_type(word, {Type::kBool}) || (word.text != "true" && word.text != "false"))
      return "true or false";
    variable = (word.text == "true") == given_means;
    return {};
  };
  option.get = [&variable, given_means] { return OptionWords{bool_word(variable == given_means)}; };
  return state_->declare(std::move(option));
}

OptionSet::Declared OptionSet::integer(std::string name, std::int64_t& variable, Integers range,
                                       std::string help) {
  Option option{.name = std::move(name), .value = "N", .help = std::move(help)};
  option.set = [&variable, range](const OptionWords& words) -> std::string {
    const auto value = integer_from(words.front(), range);
    if (!value) return describe(range);
    variable = *value;
    return {};
  };
  option.get = [&variable] { return OptionWords{{std::to_string(variable), Type::kInteger}}; };
  return state_->declare(std::move(option));
}

OptionSet::Declared OptionSet::integers(std::string name, std::array<std::int64_t, 3>& variable,
                                        Integers range, std::string help) {
  Option option{
      .name = std::move(name), .value = "N N N", .help = std::move(help), .min_words = 3, .max_words = 3};
  option.set = [&variable, range](const OptionWords& words) -> std::string {
    std::array<std::int64_t, 3> values{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value = integer_from(words[i], range);
      if (!value) return "each of three: " + describe(range);
      values[i] = *value;
    }
    variable = values;
    return {};
  };
  option.get = [&variable] {
    OptionWords words;
    for (const std::int64_t value : variable) words.push_back({std::to_string(value), Type::kInteger});
    return words;
  };
  return state_->declare(std::move(option));
}

OptionSet::Declared OptionSet::real(std::string name, double& variable, Reals range, std::string help) {
  Option option{.name = std::move(name), .value = "X", .help = std::move(help)};
  option.set = [&variable, range](const OptionWords& words) -> std::string {
    const auto value = real_from(words.front(), range);
    if (!value) return describe(range);
    variable = *value;
    return {};
  };
  // {} writes the shortest text that reads back as the same number.
  option.get = [&variable] { return OptionWords{{fmt::format("{}", variable), Type::kReal}}; };
  return state_->declare(std::move(option));
}

OptionSet::Declared OptionSet::text(std::string name, std::string& variable, std::string value,
                                    std::string help) {
  Option option{.name = std::move(name), .value = std::move(value), .help = std::move(help)};
  option.set = [&variable](const OptionWords& words) -> std::string {
    if (!fits_type(words.front(), {Type::kText})) return "a text in quotes";
    variable = words.front().text;
    return {};
  };
  option.get = [&variable] {
    return variable.empty() ? OptionWords{} : OptionWords{{variable, Type::kText}};
  };
  return state_->declare(std::move(option));
}

OptionSet::Declared OptionSet::texts(std::string name, std::vector<std::string>& variable, std::string value,
                                     std::string help) {
  Option option{.name = std::move(name),
                .value = std::move(value),
                .help = std::move(help),
                .min_words = 1,
                .max_words = std::numeric_limits<std::size_t>::max()};
  option.set = [&variable](const OptionWords& words) -> std::string {
    std::vector<std::string> values;
    for (const OptionWord& word : words) {
      if (word.type == Type::kBool) return "texts in quotes or numbers";
      values.push_back(word.text);
    }
    variable = std::move(values);
    return {};
  };
  option.get = [&variable] {
    OptionWords words;
    for (const std::string& text : variable) words.push_back({text, Type::kText});
    return words;
  };
  return state_->declare(std::move(option));
}

OptionSet::Declared OptionSet::choice_by_number(std::string name, std::vector<std::string> names,
                                                std::function<std::size_t()> get,
                                                std::function<void(std::size_t)> set, std::string help) {
  Option option{.name = std::move(name), .value = {}, .help = std::move(help)};
  for (const std::string& choice : names) option.value += (option.value.empty() ? "" : "|") + choice;
  option.choices = names;
  option.set = [names, set = std::move(set)](const OptionWords& words) -> std::string {
    const auto found = std::find(names.begin(), names.end(), words.front().text);
    if (found == names.end() || !fits_type(words.front(), {Type::kText})) return "one of " + joined(names);
    set(static_cast<std::size_t>(found - names.begin()));
    return {};
  };
  option.get = [names = std::move(names), get = std::move(get)]() -> OptionWords {
    const std::size_t i = get();
    if (i >= names.size()) return {};
    return {{names[i], Type::kText}};
  };
  return state_->declare(std::move(option));
}

OptionSet::Declared OptionSet::shorthand(std::string name, Values values, Values otherwise,
                                         std::string help) {
  Option option{
      .name = std::move(name), .value = {}, .help = std::move(help), .min_words = 0, .max_words = 0};
  option.shorthand = true;
  option.when_on = std::move(values);
  option.when_off = std::move(otherwise);
  for (const auto* side : {&option.when_on, &option.when_off}) {
    for (const auto& [target, text] : *side) {
      WEFT_CHECK(state_->find(target).first != nullptr, "--{} stands for an unknown --{}", option.name,
                 target);
    }
  }
  option.default_text = "default: off";
  return state_->declare(std::move(option));
}

void OptionSet::argument(std::string value, std::string& variable, std::string help) {
  state_->arguments.push_back({std::move(value), &variable, std::move(help)});
}

void OptionSet::allow_files(std::function<std::optional<std::string>(const std::string&)> preset,
                            std::vector<std::string> preset_names) {
  state_->files = true;
  state_->preset_text = std::move(preset);
  state_->preset_names = std::move(preset_names);
  topic("configuration");
  text("config", state_->config_file, "FILE.toml",
       "options from a TOML file, keys with underscores; the command line wins over it");
  state_->options.back()->command_line_only = true;
  text("preset", state_->preset, "NAME",
       "options by name, which all others override: " + joined(state_->preset_names));
  flag("print-config", state_->print_config,
       "print every option's value as TOML that --config takes, and stop");
  state_->options.back()->command_line_only = true;
}

// ---- reading

std::pair<OptionSet::Option*, bool> OptionSet::State::find(std::string_view name) const {
  for (const auto& option : options) {
    if (option->name == name) return {option.get(), false};
  }
  const std::string other = negation(name);
  for (const auto& option : options) {
    if (option->is_flag() && option->name == other) return {option.get(), true};
  }
  return {nullptr, false};
}

std::string OptionSet::State::nearest(const std::string& name) {
  std::vector<std::string> spellings{"help"}, names{"help"};
  const auto add = [&](const std::string& spelling, const std::string& option) {
    spellings.push_back(spelling);
    names.push_back(option);
  };
  for (const auto& option : options) {
    add(option->name, option->name);
    for (const std::string& other : option->also) add(other, option->name);
    if (option->is_flag()) add(negation(option->name), negation(option->name));
  }
  const std::string found = nearest_name(name, spellings);
  if (found.empty()) return {};
  const auto at = std::find(spellings.begin(), spellings.end(), found) - spellings.begin();
  const std::string& option = names[static_cast<std::size_t>(at)];
  if (const auto [known, negated] = find(option); known != nullptr) doubtful.insert(known->name);
  return option;
}

std::string OptionSet::State::Assignment::describe() const {
  const bool toml = !place.empty();
  std::string value;
  for (const OptionWord& word : words) {
    value += (value.empty() ? "" : (toml ? ", " : " ")) + word.written();
  }
  if (toml && words.size() != 1) value = "[" + value + "]";
  if (toml) return fmt::format("{}{} = {}", place, spelled, value);
  return option != nullptr && option->is_flag() && (value == "true" || value == "false")
             ? spelled
             : fmt::format("{} {}", spelled, value);
}

void OptionSet::State::assign(Assignment assignment, Source& source) {
  Option* option = assignment.option;
  given.insert(option->name);
  if (option->shorthand) {
    const std::string& text = assignment.words.front().text;
    if (text != "true" && text != "false") {
      problems.push_back(assignment.describe() + ": true or false is needed");
      return;
    }
    for (const auto& [name, value] : text == "true" ? option->when_on : option->when_off) {
      assign({find(name).first, {{value}}, assignment.spelled, assignment.place}, source);
    }
    return;
  }
  for (const Assignment& earlier : source.assignments) {
    if (earlier.option != option) continue;
    if (!(earlier.words == assignment.words)) {
      const auto value_of = [&](const Assignment& a) {
        std::string text;
        for (const OptionWord& word : a.words) text += (text.empty() ? "" : " ") + word.text;
        return fmt::format("{} by {}{}", text, a.place, a.spelled);
      };
      problems.push_back(fmt::format("--{} is given twice with different values: {} and {}", option->name,
                                     value_of(earlier), value_of(assignment)));
      doubtful.insert(option->name);
    }
    return;
  }
  source.assignments.push_back(std::move(assignment));
}

void OptionSet::State::read_command_line(Args args, Source& source) {
  std::size_t arguments_seen = 0;
  std::size_t i = 0;
  // Words up to the next option, at most `count`.
  const auto take = [&](std::size_t count) {
    OptionWords words;
    while (words.size() < count && i < args.size() && !args[i].starts_with("--"))
      words.push_back({args[i++]});
    return words;
  };
  while (i < args.size()) {
    const std::string& arg = args[i++];
    if (!arg.starts_with("--")) {
      if (arguments_seen < arguments.size()) {
        *arguments[arguments_seen++].variable = arg;
      } else {
        problems.push_back(fmt::format("'{}' belongs to no option", arg));
      }
      continue;
    }
    const std::size_t equals = std::min(arg.find('='), arg.size());
    const std::string name = arg.substr(2, equals - 2);
    const bool has_value = equals < arg.size();
    const auto [option, negated] = find(name);
    if (option == nullptr) {
      const OptionWords words = has_value ? OptionWords{{arg.substr(equals + 1)}} : take(SIZE_MAX);
      const std::string guess = nearest(option_name(name));
      Assignment unknown{nullptr, words, "--" + name, ""};
      problems.push_back(fmt::format("unknown option {}{}",
                                     words.empty() ? unknown.spelled : unknown.describe(),
                                     did_you_mean(guess.empty() ? "" : "--" + guess)));
      continue;
    }
    Assignment assignment{option, {}, "--" + name, ""};
    if (option->is_flag()) {
      const std::string value = has_value ? arg.substr(equals + 1) : "true";
      if (value == "true" || value == "false") {
        assignment.words = {bool_word((value == "true") != negated)};
      } else {
        assignment.words = {{value}};
      }
    } else {
      if (has_value) assignment.words.push_back({arg.substr(equals + 1)});
      // A value or list given by '=' is that one word; only an option of several values goes on.
      const bool complete = has_value && option->min_words == 1;
      for (OptionWord& word : take(complete ? 0 : option->max_words - assignment.words.size())) {
        assignment.words.push_back(std::move(word));
      }
      if (assignment.words.size() < option->min_words) {
        problems.push_back(fmt::format(
            "--{} needs {}: {}", name,
            option->min_words == 1 ? "a value" : fmt::format("{} values", option->min_words), option->value));
        doubtful.insert(option->name);
        given.insert(option->name);
        continue;
      }
    }
    assign(std::move(assignment), source);
  }
  for (; arguments_seen < arguments.size(); ++arguments_seen) {
    problems.push_back(fmt::format("{} must be given ({})", arguments[arguments_seen].value,
                                   arguments[arguments_seen].help));
  }
}

void OptionSet::State::apply(const Source& source) {
  for (const Assignment& assignment : source.assignments) {
    const std::string needed = assignment.option->set(assignment.words);
    if (needed.empty()) continue;
    doubtful.insert(assignment.option->name);
    const auto& choices = assignment.option->choices;
    const std::string guess = choices.empty() ? "" : nearest_name(assignment.words.front().text, choices);
    problems.push_back(fmt::format("{}: {} is needed{}", assignment.describe(), needed, did_you_mean(guess)));
  }
}

OptionSet::Request OptionSet::parse(Args args, const std::function<std::vector<std::string>()>& check) {
  State& s = *state_;
  s.problems.clear();
  s.given.clear();
  s.doubtful.clear();
  s.unreadable = false;
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") return Request::kHelp;
  }
  State::Source preset, file, line;
  s.read_command_line(args, line);
  const auto value_of = [](const State::Source& source, std::string_view name) -> std::string {
    for (const auto& assignment : source.assignments) {
      if (assignment.option->name == name) return assignment.words.front().text;
    }
    return {};
  };
  if (const std::string path = s.files ? value_of(line, "config") : ""; !path.empty()) {
    try {
      s.read_toml(path, read_file(path), file);
    } catch (const ConfigError& e) {
      s.problems.push_back(fmt::format("--config {}: {}", path, e.what()));
      s.unreadable = true;
    }
  }
  std::string name = s.files ? value_of(line, "preset") : "";
  if (name.empty() && s.files) name = value_of(file, "preset");
  if (!name.empty()) {
    if (const auto text = s.preset_text(name)) {
      s.read_toml("preset " + name, *text, preset);
    } else {
      s.problems.push_back(fmt::format("--preset {}: there is no such preset, but {}{}", name,
                                       joined(s.preset_names),
                                       did_you_mean(nearest_name(name, s.preset_names))));
      s.unreadable = true;
    }
  }
  for (const State::Source* source : {&preset, &file, &line}) s.apply(*source);
  for (const auto& option : s.options) {
    if (!option->required || s.given.contains(option->name) || s.doubtful.contains(option->name)) continue;
    s.problems.push_back(fmt::format("--{} {} must be given", option->name, option->value));
  }
  if (check && !s.unreadable) {
    for (const std::string& problem : check()) {
      const bool follows = std::any_of(s.doubtful.begin(), s.doubtful.end(),
                                       [&](const std::string& option) { return mentions(problem, option); });
      if (!follows) s.problems.push_back(problem);
    }
  }
  if (!s.problems.empty()) throw ConfigError(s.problems);
  return s.print_config ? Request::kPrintConfig : Request::kRun;
}

bool OptionSet::given(std::string_view name) const {
  return state_->given.contains(name);
}

}  // namespace weft
