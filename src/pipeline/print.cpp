#include "pipeline/print.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace weft {
namespace {

constexpr double kMargin = 16, kLabel = 64, kRow = 30, kGap = 6, kHead = 72, kFoot = 28;

char letter_of(const Action& action) {
  return action.kind == ActionKind::kForward ? 'F' : action.kind == ActionKind::kBackward ? 'B' : 'W';
}

// The shortest time of an action; 1 when there is none.
double shortest(const SimulationResult& result) {
  double time = 0;
  for (const RankResult& rank : result.ranks) {
    for (const TimelineEntry& entry : rank.timeline) {
      const double length = entry.end - entry.begin;
      if (length > 0 && (time == 0 || length < time)) time = length;
    }
  }
  return time > 0 ? time : 1;
}

std::string cell_of(const Action& action) {
  std::string text = fmt::format("{}{}", letter_of(action), action.microbatch);
  if (action.chunk > 0) text += static_cast<char>('a' + action.chunk % 26);
  return text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

// Odd chunks are drawn lighter, so that the chunks of a rank can be told apart.
constexpr const char* kStyle =
    "<style>\n"
    "text{font-family:system-ui,sans-serif;font-size:13px;fill:#1b1f24}\n"
    ".page{fill:#ffffff} .track{fill:#e6e9ed} .title{font-size:16px} .soft{fill:#5b6570;font-size:12px}\n"
    ".F0{fill:#6ea8e8} .B0{fill:#f0a35b} .W0{fill:#73bf83}\n"
    ".F1{fill:#b5d3f5} .B1{fill:#f9d3ac} .W1{fill:#b9e0c1}\n"
    "@media (prefers-color-scheme:dark){text{fill:#e8ecf0} .page{fill:#14181d} .track{fill:#2a323b} "
    ".soft{fill:#9aa5b1}}\n"
    ".cell{fill:#10151a;font-size:11px;text-anchor:middle}\n"
    "</style>\n";

std::string legend(bool chunks) {
  constexpr std::array kKinds = {std::pair{'F', "forward"}, std::pair{'B', "backward (input gradient)"},
                                 std::pair{'W', "weight gradient"}};
  std::string text;
  double x = kMargin + kLabel;
  for (const auto& [letter, name] : kKinds) {
    text +=
        fmt::format("<rect class=\"{}0\" x=\"{}\" y=\"42\" width=\"14\" height=\"14\" rx=\"2\"/>", letter, x);
    text += fmt::format("<text class=\"soft\" x=\"{}\" y=\"53\">{}</text>\n", x + 20, name);
    x += 40 + 7.2 * static_cast<double>(std::string_view(name).size());
  }
  if (chunks) text += fmt::format("<text class=\"soft\" x=\"{}\" y=\"53\">lighter: odd chunks</text>\n", x);
  return text;
}

}  // namespace

std::string draw_text(const std::vector<Program>& programs, const SimulationResult& result,
                      std::size_t columns) {
  const double unit =
      std::max(shortest(result), columns > 0 ? result.makespan / static_cast<double>(columns) : 0);
  std::size_t width = 2;
  for (const Program& program : programs) {
    for (const Action& action : program) {
      if (is_compute(action.kind)) width = std::max(width, cell_of(action).size() + 1);
    }
  }
  std::string text;
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    std::vector<std::string> cells(static_cast<std::size_t>(std::lround(result.makespan / unit)), ".");
    for (const TimelineEntry& entry : result.ranks[rank].timeline) {
      const auto begin = static_cast<std::size_t>(std::lround(entry.begin / unit));
      const auto end = std::min(cells.size(), static_cast<std::size_t>(std::lround(entry.end / unit)));
      for (std::size_t i = begin; i < end; ++i) {
        cells[i] = i == begin ? cell_of(programs[rank][entry.action]) : "-";
      }
    }
    std::string line = fmt::format("rank {:<3}", rank);
    for (const std::string& cell : cells) line += fmt::format("{:<{}}", cell, width);
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string draw_svg(const std::vector<Program>& programs, const SimulationResult& result,
                     const std::string& title) {
  const double span = result.makespan > 0 ? result.makespan : 1;
  // A readable number in the shortest action where the page stays below 4000 pixels.
  const double scale = std::min(24 / shortest(result), 4000 / span);
  const double width = std::max(620.0, 2 * kMargin + kLabel + span * scale);
  const double height = kHead + (kRow + kGap) * static_cast<double>(result.ranks.size()) + kFoot;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n",
      width, height, escaped(title));
  text += kStyle;
  text += "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n";
  text += fmt::format("<text class=\"title\" x=\"{}\" y=\"28\">{}</text>\n", kMargin, escaped(title));
  bool chunks = false;
  std::string rows;
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const double y = kHead + (kRow + kGap) * static_cast<double>(rank);
    rows += fmt::format("<text x=\"{}\" y=\"{}\">rank {}</text>\n", kMargin, y + 20, rank);
    rows += fmt::format("<rect class=\"track\" x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"/>\n",
                        kMargin + kLabel, y, span * scale, kRow);
    for (const TimelineEntry& entry : result.ranks[rank].timeline) {
      const Action& action = programs[rank][entry.action];
      chunks = chunks || action.chunk > 0;
      const double x = kMargin + kLabel + entry.begin * scale, length = (entry.end - entry.begin) * scale;
      rows += fmt::format(
          "<rect class=\"{}{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"><title>{} {:g} to "
          "{:g}</title></rect>",
          letter_of(action), action.chunk % 2, x, y, std::max(length - 1, 0.4), kRow, to_string(action),
          entry.begin, entry.end);
      const double digits = action.microbatch > 99 ? 3 : action.microbatch > 9 ? 2 : 1;
      if (length >= 4 + 7 * digits) {
        rows += fmt::format("<text class=\"cell\" x=\"{:.2f}\" y=\"{}\">{}</text>", x + (length - 1) / 2,
                            y + 19, action.microbatch);
      }
      rows += '\n';
    }
  }
  text += legend(chunks) + rows;
  const double axis = height - kFoot + 12;
  text += fmt::format("<text class=\"soft\" x=\"{}\" y=\"{}\">0</text>\n", kMargin + kLabel, axis);
  text += fmt::format("<text class=\"soft\" x=\"{:.2f}\" y=\"{}\" text-anchor=\"end\">{:g}</text>\n</svg>\n",
                      kMargin + kLabel + span * scale, axis, result.makespan);
  return text;
}

}  // namespace weft
