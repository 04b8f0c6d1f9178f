#include "train/freeze.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/check.hpp"
#include "model/gpt_model.hpp"
#include "train/nearest.hpp"

namespace weft {
namespace {

ModelSpec frozen_spec(const std::vector<std::string>& patterns) {
  return {.freeze = patterns};
}

// Of the whole model; built without a pattern, so that any may be held against it.
std::vector<LogicalTensor> tensors_of(const ModelConfig& model) {
  const ModelSpec spec = local_spec(model);
  return logical_tensors(spec, {true, 0, static_cast<std::int64_t>(spec.layers.size()), true});
}

// The names, and the patterns of their parts: "decoder.*", "*.mlp.*", "*.linear_fc1.weight".
std::set<std::string> sensible_patterns(const std::vector<LogicalTensor>& tensors) {
  std::set<std::string> patterns;
  for (const LogicalTensor& tensor : tensors) {
    const std::string& name = tensor.name;
    patterns.insert(name);
    for (std::size_t begin = 0, dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
      patterns.insert(name.substr(0, dot) + ".*");
      if (begin > 0) patterns.insert("*." + name.substr(begin, dot - begin) + ".*");
      patterns.insert("*" + name.substr(dot));
      begin = dot + 1;
    }
  }
  return patterns;
}

std::string nearest(const std::string& pattern, const std::set<std::string>& known) {
  std::vector<std::pair<double, std::string>> by_distance;
  for (const std::string& name : known) by_distance.emplace_back(name_distance(pattern, name), name);
  std::stable_sort(by_distance.begin(), by_distance.end());
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(by_distance.size(), 3); ++i) {
    text += (i == 0 ? "" : ", ") + by_distance[i].second;
  }
  return text;
}

}  // namespace

std::vector<std::string> freeze_problems(const ModelConfig& model, const std::vector<std::string>& patterns) {
  std::vector<std::string> problems;
  const std::vector<LogicalTensor> tensors = tensors_of(model);
  const ModelSpec all = frozen_spec(patterns);
  for (const std::string& pattern : patterns) {
    const ModelSpec one = frozen_spec({pattern});
    if (std::none_of(tensors.begin(), tensors.end(), [&](const auto& t) { return is_frozen(one, t.name); })) {
      problems.push_back(fmt::format("--freeze {} matches no tensor of this model; the nearest are {}",
                                     pattern, nearest(pattern, sensible_patterns(tensors))));
    }
  }
  bool trains = false;
  std::string torn;  // the first parameter that would be frozen in part
  int more = 0;
  for (auto first = tensors.begin(); first != tensors.end();) {
    // The parts of one parameter lie one below the other.
    const auto end = std::find_if(first + 1, tensors.end(), [](const auto& t) { return t.local_row == 0; });
    std::string frozen, trained;
    for (; first != end; ++first) {
      std::string& list = is_frozen(all, first->name) ? frozen : trained;
      list += (list.empty() ? "" : ", ") + first->name;
    }
    trains = trains || !trained.empty();
    if (frozen.empty() || trained.empty()) continue;
    if (!torn.empty()) ++more;
    if (torn.empty()) {
      torn = fmt::format(
          "--freeze {}: {} and {} lie in one parameter, and only the former would be frozen; freeze all of "
          "them or none",
          fmt::join(patterns, " "), frozen, trained);
    }
  }
  if (more > 0) torn += fmt::format(" (and so in {} more parameters)", more);
  if (!torn.empty()) problems.push_back(std::move(torn));
  if (!trains) {
    problems.push_back(fmt::format("--freeze {} freezes all {} tensors: nothing is left to train",
                                   fmt::join(patterns, " "), tensors.size()));
  }
  return problems;
}

std::int64_t frozen_parameters(const ModelConfig& model, const std::vector<std::string>& patterns) {
  const ModelSpec frozen = frozen_spec(patterns);
  std::int64_t count = 0;
  if (patterns.empty()) return count;
  for (const LogicalTensor& tensor : tensors_of(model)) {
    if (is_frozen(frozen, tensor.name)) count += tensor.global.elems();
  }
  return count;
}

}  // namespace weft
