#include "pipeline/action.hpp"

#include <fmt/core.h>

#include <array>

namespace weft {

const char* name_of(ActionKind kind) {
  constexpr std::array kNames = {"forward",         "backward",           "weight grad",
                                 "send activation", "receive activation", "send gradient",
                                 "receive gradient"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string to_string(const Action& action) {
  constexpr std::array kNames = {"F", "B", "W", "SF", "RF", "SB", "RB"};
  std::string text =
      fmt::format("{}{}{}", action.stage, kNames[static_cast<std::size_t>(action.kind)], action.microbatch);
  if (is_send(action.kind)) text += fmt::format(">{}", action.peer);
  if (is_receive(action.kind)) text += fmt::format("<{}", action.peer);
  return text;
}

std::string to_string(const Program& program) {
  std::string text;
  for (const Action& action : program) text += (text.empty() ? "" : " ") + to_string(action);
  return text;
}

}  // namespace weft
