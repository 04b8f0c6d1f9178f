// --help.
#include <algorithm>

#include "core/check.hpp"
#include "train/option_state.hpp"

namespace weft {
namespace {

constexpr std::size_t kColumn = 34, kWidth = 112;

// `text` broken at spaces, every line but the first indented to kColumn.
std::string wrapped(const std::string& text) {
  std::string out;
  std::size_t column = kColumn;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::size_t length = end - begin;
    if (column > kColumn && column + 1 + length > kWidth) {
      out += '\n' + std::string(kColumn, ' ');
      column = kColumn;
    } else if (column > kColumn) {
      out += ' ';
      ++column;
    }
    out.append(text, begin, length);
    column += length;
    begin = end + 1;
  }
  return out + '\n';
}

std::string line_of(const std::string& left, const std::string& right) {
  std::string line = "  " + left;
  if (line.size() + 2 > kColumn) {
    line += '\n' + std::string(kColumn, ' ');
  } else {
    line += std::string(kColumn - line.size(), ' ');
  }
  return line + wrapped(right);
}

}  // namespace

std::string OptionSet::help() const {
  const State& s = *state_;
  std::string out = "Usage: " + s.program;
  for (const auto& argument : s.arguments) out += ' ' + argument.value;
  if (!s.options.empty()) out += " [options]";
  out += fmt::format("\n{}\n", s.summary);
  if (!s.arguments.empty()) out += '\n';
  for (const auto& argument : s.arguments) out += line_of(argument.value, argument.help);
  for (const std::string& topic : s.topics) {
    out += fmt::format("\n{}:\n", topic);
    for (const auto& option : s.options) {
      if (option->topic != topic) continue;
      const std::string left = "--" + option->name + (option->value.empty() ? "" : ' ' + option->value);
      out += line_of(left,
                     option->help + (option->default_text.empty() ? "" : " [" + option->default_text + ']'));
    }
  }
  out += "\nFlags can be turned off with --no-NAME. -h, --help shows this.\n";
  return out;
}

}  // namespace weft
