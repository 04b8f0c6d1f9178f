// The numbers of each preset are those of the published model: its size, as its first comment says it.
#include <gtest/gtest.h>

#include <cctype>
#include <regex>

#include "core/check.hpp"
#include "train/options.hpp"

namespace weft {
namespace {

ModelConfig model_of(const std::string& preset) {
  TrainConfig config;
  OptionSet options("weft train", "trains");
  add_train_options(options, config);
  const std::vector<std::string> args = {"--preset", preset};
  try {
    parse_train_options(options, config, args);
  } catch (const ConfigError&) {
    // Length of the run and data are missing; the model is there.
  }
  return resolved(config.model);
}

TEST(Presets, HaveThePublishedNumberOfParameters) {
  int counted = 0;
  for (const std::string& name : preset_names()) {
    std::string head = preset_text(name).value().substr(0, 400);
    head = std::regex_replace(head, std::regex("\n# "), " ");
    std::smatch match;
    if (!std::regex_search(head, match, std::regex(": ([0-9 ]+) parameters")))
      continue;  // rounded in its source
    std::string digits = match[1];
    std::erase(digits, ' ');
    EXPECT_EQ(parameter_count(model_of(name)), std::stoll(digits)) << name;
    ++counted;
  }
  EXPECT_GE(counted, 20);
}

TEST(Presets, NameTheirSource) {
  for (const std::string& name : preset_names()) {
    EXPECT_EQ(preset_text(name).value().rfind("# ", 0), 0U) << name << " begins with no comment";
  }
}

}  // namespace
}  // namespace weft
