// The numbers of each preset are those of the published model: its size, as its first comment says it.
#include <gtest/gtest.h>

#include <cctype>
#include <cstring>

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
    // "...: 1 234 567 parameters" in the comment, which may be broken over lines.
    const std::string head = preset_text(name).value().substr(0, 400);
    const std::size_t end = head.find(" parameters");
    if (end == std::string::npos) continue;
    std::string digits;
    std::size_t i = end;
    while (i > 0 && std::strchr("0123456789 #\n", head[i - 1]) != nullptr) --i;
    if (i == 0 || head[i - 1] != ':') continue;  // rounded in its source
    for (; i < end; ++i) {
      if (head[i] >= '0' && head[i] <= '9') digits += head[i];
    }
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
