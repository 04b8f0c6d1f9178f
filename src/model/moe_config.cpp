#include "model/moe_config.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "core/check.hpp"

namespace weft {
namespace {

// Lists of 0 and 1 in Python's words: [0]*3+[1]*58, ([0]+[1]*3)*2. Nothing where it is no such list.
class LayerList {
 public:
  LayerList(std::string_view text, std::size_t longest) : text_(text), longest_(longest) {}

  std::optional<std::vector<bool>> parse() {
    std::optional<std::vector<bool>> list = sum(0);
    return at_ == text_.size() ? list : std::nullopt;
  }

 private:
  using List = std::optional<std::vector<bool>>;

  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    peek();
    return true;
  }
  std::optional<std::int64_t> number() {
    peek();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    at_ = static_cast<std::size_t>(end - text_.data());
    peek();
    return value;
  }

  List sum(int depth) {
    List list = product(depth);
    while (list && take('+')) {
      const List next = product(depth);
      if (!next || list->size() + next->size() > longest_) return std::nullopt;
      list->insert(list->end(), next->begin(), next->end());
    }
    return list;
  }
  List product(int depth) {
    const List once = item(depth);
    if (!once || !take('*')) return once;
    const std::optional<std::int64_t> times = number();
    if (once->empty()) return once;
    if (!times || static_cast<std::size_t>(*times) > longest_ / once->size()) return std::nullopt;
    std::vector<bool> list;
    for (std::int64_t i = 0; i < *times; ++i) list.insert(list.end(), once->begin(), once->end());
    return list;
  }
  List item(int depth) {
    if (depth > 8) return std::nullopt;
    if (take('(')) {
      List list = sum(depth + 1);
      return take(')') ? list : std::nullopt;
    }
    if (!take('[')) return std::nullopt;
    std::vector<bool> list;
    do {
      const std::optional<std::int64_t> value = number();
      if (!value || *value > 1 || list.size() == longest_) return std::nullopt;
      list.push_back(*value == 1);
    } while (take(','));
    return take(']') ? List(list) : std::nullopt;
  }

  std::string_view text_;
  std::size_t longest_, at_ = 0;
};

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

}  // namespace

std::vector<bool> expert_layers(const MoeConfig& config, std::int64_t layers) {
  const auto count = static_cast<std::size_t>(layers);
  if (config.num_experts == 0) return std::vector<bool>(count, false);
  if (const std::optional<std::int64_t> every = whole_number(config.layer_freq)) {
    if (*every < 1) config_fail("--moe-layer-freq {} must be at least 1", *every);
    std::vector<bool> list(count);
    for (std::size_t i = 0; i < count; i += static_cast<std::size_t>(*every)) list[i] = true;
    return list;
  }
  const std::optional<std::vector<bool>> list = LayerList(config.layer_freq, 1 << 20).parse();
  if (!list) {
    config_fail(
        "--moe-layer-freq {}: give a number N (experts in every N-th layer, from the first on) or a "
        "list of a 1 or 0 for each layer, like [0]*1+[1]*{}",
        config.layer_freq, std::max<std::int64_t>(layers - 1, 1));
  }
  if (list->size() != count) {
    config_fail("--moe-layer-freq {} says of {} layers whether they have experts, but --num-layers is {}",
                config.layer_freq, list->size(), layers);
  }
  return *list;
}

std::string layer_freq_of(const std::vector<bool>& layers) {
  if (std::find(layers.begin(), layers.end(), false) == layers.end()) return "1";
  std::string text;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[i]) ++end;
    text += fmt::format("{}[{}]*{}", i > 0 ? "+" : "", layers[i] ? 1 : 0, end - i);
    i = end;
  }
  return text;
}

std::vector<std::string> problems_of(const MoeConfig& c, std::int64_t layers) {
  std::vector<std::string> problems;
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    problems.push_back(fmt::format(format, std::forward<Args>(args)...));
  };
  if (c.num_experts == 0) {
    if (c != MoeConfig{}) add("options of experts (--moe-...) are given, but --num-experts is 0");
    return problems;
  }
  if (c.num_experts < 1 || c.num_experts > 1 << 16) {
    add("--num-experts {} must be from 1 to {}", c.num_experts, 1 << 16);
    return problems;
  }
  try {
    const std::vector<bool> list = expert_layers(c, layers);
    if (std::find(list.begin(), list.end(), true) == list.end()) {
      add("--moe-layer-freq {}: --num-experts {}, but no layer has experts", c.layer_freq, c.num_experts);
    }
  } catch (const ConfigError& error) {
    problems.emplace_back(error.what());
  }
  if (c.topk < 1 || c.topk > c.num_experts) {
    add("--moe-router-topk {} must be from 1 to --num-experts {}", c.topk, c.num_experts);
  }
  if ((c.num_groups == 0) != (c.group_topk == 0)) {
    add("--moe-router-num-groups {} and --moe-router-group-topk {}: give both", c.num_groups, c.group_topk);
  } else if (c.num_groups > 0) {
    if (c.num_experts % c.num_groups != 0) {
      add("--num-experts {} is not divisible by --moe-router-num-groups {}", c.num_experts, c.num_groups);
    }
    if (c.group_topk > c.num_groups) {
      add("--moe-router-group-topk {} is larger than --moe-router-num-groups {}", c.group_topk, c.num_groups);
    }
    if (c.topk % c.group_topk != 0) {
      add("--moe-router-topk {} is not divisible by --moe-router-group-topk {}", c.topk, c.group_topk);
    } else if (c.num_experts % c.num_groups == 0 && c.topk > c.group_topk * (c.num_experts / c.num_groups)) {
      add("--moe-router-topk {}: the {} groups of --moe-router-group-topk have {} experts together", c.topk,
          c.group_topk, c.group_topk * (c.num_experts / c.num_groups));
    }
  }
  if (c.expert_bias && c.score_function != RouterScoreFunction::kSigmoid) {
    add("--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid");
  }
  if (c.pad_to_capacity && c.expert_capacity_factor == 0) {
    add("--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor");
  }
  return problems;
}

}  // namespace weft
