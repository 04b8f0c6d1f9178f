#include "model/stage_split.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/check.hpp"

namespace weft {
namespace {

// A layout string with its repetitions written out: only E, t, L and | are left.
class LayoutText {
 public:
  explicit LayoutText(const std::string& layout) {
    std::copy_if(layout.begin(), layout.end(), std::back_inserter(in_), [](char c) { return c != ','; });
    out_ = sequence();
    if (problem_.empty() && at_ < in_.size()) stop("a ) without its (");
  }
  const std::string& problem() const { return problem_; }  // empty: it could be read
  const std::string& text() const { return out_; }

 private:
  // No model has more stages and layers; a slip (t*99999999) must not take memory.
  static constexpr std::size_t kLongest = std::size_t{1} << 20;
  static constexpr int kDeepest = 100;  // groups are read by recursion

  void stop(const std::string& what) {
    if (problem_.empty()) problem_ = what;
    at_ = in_.size();
  }

  // Up to the end or a closing bracket.
  std::string sequence() {
    std::string text;
    while (at_ < in_.size() && in_[at_] != ')') {
      const std::string once = item();
      const std::size_t times = repetitions();
      if (!problem_.empty()) return {};
      if (!once.empty() && times > (kLongest - text.size()) / once.size()) {
        stop(fmt::format("it has more than {} items", kLongest));
        return {};
      }
      for (std::size_t i = 0; i < times; ++i) text += once;
    }
    return text;
  }

  // A letter, a | or the inside of a group.
  std::string item() {
    const char c = in_[at_++];
    group_ = c == '(';
    if (group_) {
      if (depth_ == kDeepest) {
        stop(fmt::format("more than {} groups inside each other", kDeepest));
        return {};
      }
      ++depth_;
      std::string inside = sequence();
      --depth_;
      if (problem_.empty() && at_ == in_.size()) stop("a ( without its )");
      ++at_;
      group_ = true;  // inner groups have changed it
      return inside;
    }
    if (c == 'E' || c == 't' || c == 'L' || c == '|') return {c};
    if (c == 'm') {
      stop("m (a multi-token prediction layer) is not supported; leave it out");
    } else if (c == '*') {
      stop("a * must follow E, t, L, | or a group in brackets");
    } else {
      stop(
          fmt::format("'{}' is unknown; E is the embedding, t a layer, L output layer and loss, | begins the "
                      "next stage",
                      c));
    }
    return {};
  }

  // The number behind *; 1 without it, which a group must not be.
  std::size_t repetitions() {
    if (at_ >= in_.size() || in_[at_] != '*') {
      if (group_ && problem_.empty()) stop("a group in brackets needs *n behind it");
      return 1;
    }
    const std::size_t begin = ++at_;
    std::size_t n = 0;
    for (; at_ < in_.size() && in_[at_] >= '0' && in_[at_] <= '9'; ++at_) {
      n = std::min(n * 10 + static_cast<std::size_t>(in_[at_] - '0'), kLongest + 1);
    }
    if (at_ == begin) stop("a * needs a number behind it");
    return n;
  }

  std::string in_, out_, problem_;
  std::size_t at_ = 0;
  int depth_ = 0;       // groups that are open
  bool group_ = false;  // the item just read was one
};

std::vector<std::string> stages_in(const std::string& text) {
  std::vector<std::string> stages(1);
  for (const char c : text) {
    if (c == '|') {
      stages.emplace_back();
    } else {
      stages.back() += c;
    }
  }
  return stages;
}

std::string pipeline_size(const StageSplit& s) {
  return fmt::format("{} = --pipeline-model-parallel-size {} x --num-virtual-stages-per-pipeline-rank {}",
                     s.stages(), s.ranks, s.chunks);
}

// Collects what is wrong with one split.
class Problems {
 public:
  explicit Problems(const StageSplit& split) : s_(split) {}

  std::vector<std::string> collect() {
    if (s_.ranks < 1) add("--pipeline-model-parallel-size {} must be at least 1", s_.ranks);
    if (s_.chunks < 1) add("--num-virtual-stages-per-pipeline-rank {} must be at least 1", s_.chunks);
    if (s_.num_layers < 1) add("--num-layers {} must be at least 1", s_.num_layers);
    if (!list_.empty()) return std::move(list_);
    const bool by_rank =
        s_.decoder_first_pipeline_num_layers != 0 || s_.decoder_last_pipeline_num_layers != 0;
    const bool accounts = s_.account_for_embedding_in_pipeline_split || s_.account_for_loss_in_pipeline_split;
    if (!s_.pipeline_model_parallel_layout.empty()) {
      if (by_rank || accounts) {
        add("--pipeline-model-parallel-layout says all there is to say: leave out {}", others());
      }
      layout();
    } else if (by_rank && accounts) {
      add("{}: either say the layers of the first and last rank, or let the embedding and the loss count as "
          "layers",
          others());
    } else if (by_rank) {
      first_and_last();
    } else {
      alike();
    }
    return std::move(list_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    list_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // The options that were given beside a layout, in words.
  std::string others() const {
    std::string text;
    const auto name = [&](bool given, const std::string& option) {
      if (given) text += (text.empty() ? "" : " and ") + option;
    };
    const std::int64_t first = s_.decoder_first_pipeline_num_layers,
                       last = s_.decoder_last_pipeline_num_layers;
    name(first != 0, fmt::format("--decoder-first-pipeline-num-layers {}", first));
    name(last != 0, fmt::format("--decoder-last-pipeline-num-layers {}", last));
    name(s_.account_for_embedding_in_pipeline_split, "--account-for-embedding-in-pipeline-split");
    name(s_.account_for_loss_in_pipeline_split, "--account-for-loss-in-pipeline-split");
    return text;
  }

  void alike() {
    const bool embedding = s_.account_for_embedding_in_pipeline_split,
               loss = s_.account_for_loss_in_pipeline_split;
    const std::int64_t units = s_.num_layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
    if (units % s_.stages() == 0) return;
    if (embedding || loss) {
      add("--num-layers {} with {} counted as layers makes {}, which is not divisible by {}; say the layers "
          "of "
          "the first and last rank (--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers) "
          "or write the stages out (--pipeline-model-parallel-layout)",
          s_.num_layers, others(), units, pipeline_size(s_));
    } else {
      add("--num-layers {} is not divisible by {}; for stages of unequal size say the layers of the first or "
          "last rank (--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers), let the "
          "embedding or the loss count as a layer (--account-for-embedding-in-pipeline-split, "
          "--account-for-loss-in-pipeline-split), or write the stages out (--pipeline-model-parallel-layout)",
          s_.num_layers, pipeline_size(s_));
    }
  }

  void first_and_last() {
    const std::int64_t first = s_.decoder_first_pipeline_num_layers,
                       last = s_.decoder_last_pipeline_num_layers;
    const std::int64_t given = (first != 0 ? 1 : 0) + (last != 0 ? 1 : 0);
    if (first < 0 || last < 0) {
      add("{}: a number of layers is not negative", others());
      return;
    }
    if (s_.ranks == 1) {
      add("{} needs --pipeline-model-parallel-size above 1 (it is 1)", others());
      return;
    }
    for (const auto& [option, layers] : {std::pair("first", first), std::pair("last", last)}) {
      if (layers % s_.chunks == 0) continue;
      add("--decoder-{}-pipeline-num-layers {} is not divisible by --num-virtual-stages-per-pipeline-rank {}",
          option, layers, s_.chunks);
    }
    const std::int64_t rest = s_.num_layers - first - last, ranks = s_.ranks - given;
    if (rest < 0) {
      add("{} is more than --num-layers {}", others(), s_.num_layers);
    } else if (ranks == 0 && rest != 0) {
      add("{} make {} layers with --pipeline-model-parallel-size 2, but --num-layers is {}", others(),
          first + last, s_.num_layers);
    } else if (ranks > 0 && (rest == 0 || rest % (ranks * s_.chunks) != 0)) {
      add("{} leaves {} of --num-layers {} for the other {} ranks of --pipeline-model-parallel-size {}, "
          "which "
          "must be a multiple of {} = {} x --num-virtual-stages-per-pipeline-rank {}, above 0; "
          "--pipeline-model-parallel-layout can say any split",
          others(), rest, s_.num_layers, ranks, s_.ranks, ranks * s_.chunks, ranks, s_.chunks);
    }
  }

  void layout() {
    std::string shown = s_.pipeline_model_parallel_layout;
    if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
    const std::string option = "--pipeline-model-parallel-layout " + shown;
    const LayoutText layout(s_.pipeline_model_parallel_layout);
    if (!layout.problem().empty()) {
      add("{}: {}", option, layout.problem());
      return;
    }
    const std::string& text = layout.text();
    const auto count = [&](char c) { return std::count(text.begin(), text.end(), c); };
    const std::int64_t layers = count('t'), stages = count('|') + 1;
    if (layers != s_.num_layers) {
      add("{}: {} layers (t), but --num-layers is {}", option, layers, s_.num_layers);
    }
    if (stages != s_.stages()) add("{}: {} stages, but there are {}", option, stages, pipeline_size(s_));
    if (count('E') != 1) add("{}: {} embeddings (E), but a model has one", option, count('E'));
    if (count('E') == 1 && text.front() != 'E') {
      add("{}: the embedding (E) must be the first of the first stage", option);
    }
    if (count('L') != 1) add("{}: {} losses (L), but a model has one", option, count('L'));
    if (count('L') == 1 && text.back() != 'L') {
      add("{}: the loss (L) must be the last of the last stage", option);
    }
  }

  const StageSplit& s_;
  std::vector<std::string> list_;
};

std::vector<std::int64_t> layers_of_stages(const StageSplit& s) {
  std::vector<std::int64_t> layers;
  if (!s.pipeline_model_parallel_layout.empty()) {
    for (const std::string& stage : stages_in(LayoutText(s.pipeline_model_parallel_layout).text())) {
      layers.push_back(std::count(stage.begin(), stage.end(), 't'));
    }
    return layers;
  }
  const std::int64_t embedding = s.account_for_embedding_in_pipeline_split ? 1 : 0,
                     loss = s.account_for_loss_in_pipeline_split ? 1 : 0;
  const std::int64_t first = s.decoder_first_pipeline_num_layers, last = s.decoder_last_pipeline_num_layers;
  const std::int64_t alike = s.ranks - (first != 0 ? 1 : 0) - (last != 0 ? 1 : 0);
  const std::int64_t rest = s.num_layers + embedding + loss - first - last;
  for (std::int64_t stage = 0; stage < s.stages(); ++stage) {
    const std::int64_t rank = s.v_shaped && stage >= s.ranks ? 2 * s.ranks - 1 - stage : stage % s.ranks;
    std::int64_t of_rank = alike > 0 ? rest / alike : 0;
    if (rank == 0 && first != 0) of_rank = first;
    if (rank == s.ranks - 1 && last != 0) of_rank = last;
    layers.push_back(of_rank / s.chunks);
  }
  layers.front() -= embedding;
  layers.back() -= loss;
  return layers;
}

}  // namespace

std::vector<std::string> problems_of(const StageSplit& split) {
  return Problems(split).collect();
}

std::vector<StageRange> split_stages(const StageSplit& split) {
  if (std::vector<std::string> problems = problems_of(split); !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  std::vector<StageRange> stages;
  std::int64_t next = 0;
  for (const std::int64_t layers : layers_of_stages(split)) {
    stages.push_back({.first_layer = next, .layers = layers});
    next += layers;
  }
  stages.front().embedding = true;
  stages.back().loss = true;
  WEFT_CHECK(next == split.num_layers, "{} layers on the stages of a model of {}", next, split.num_layers);
  return stages;
}

std::int64_t stages_of_layout(const std::string& layout) {
  const LayoutText read(layout);
  if (layout.empty() || !read.problem().empty()) return 0;
  return std::count(read.text().begin(), read.text().end(), '|') + 1;
}

std::string to_string(const std::vector<StageRange>& stages) {
  std::string text = "stages:";
  std::int64_t layers = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageRange& stage = stages[i];
    std::string parts;
    const auto add = [&](const std::string& part) { parts += (parts.empty() ? "" : ", ") + part; };
    if (stage.embedding) add("embedding");
    if (stage.layers == 1) add(fmt::format("layer {}", stage.first_layer));
    if (stage.layers > 1) {
      add(fmt::format("layers {}-{}", stage.first_layer, stage.first_layer + stage.layers - 1));
    }
    if (stage.loss) add("loss");
    text += fmt::format("{} {} [{}]", i == 0 ? "" : ",", i, parts);
    layers += stage.layers;
  }
  return text + fmt::format("; {} layer{}", layers, layers == 1 ? "" : "s");
}

}  // namespace weft
