#include "train/context_parallel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace weft {
namespace {

struct MethodName {
  const char* name;
  ContextMethod method;
};
constexpr std::array<MethodName, 4> kMethods{{{"p2p", ContextMethod::kP2p},
                                              {"all_gather", ContextMethod::kAllGather},
                                              {"a2a", ContextMethod::kA2a},
                                              {"a2a+p2p", ContextMethod::kA2aP2p}}};

std::optional<ContextMethod> method_of(const std::string& name) {
  for (const MethodName& m : kMethods) {
    if (name == m.name) return m.method;
  }
  return std::nullopt;
}

// The two sizes of --hierarchical-context-parallel-sizes, {0, 0} where they are no two sizes.
std::array<std::int64_t, 2> level_sizes(const ParallelConfig& p) {
  std::array<std::int64_t, 2> sizes{};
  const auto& words = p.hierarchical_context_parallel_sizes;
  if (words.size() != sizes.size()) return {};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const char* end = words[i].data() + words[i].size();
    const auto [stop, error] = std::from_chars(words[i].data(), end, sizes[i]);
    if (error != std::errc() || stop != end || sizes[i] < 1) return {};
  }
  return sizes;
}

bool uses(const ParallelConfig& p, ContextMethod method) {
  return std::any_of(p.cp_comm_type.begin(), p.cp_comm_type.end(),
                     [&](const std::string& name) { return method_of(name) == method; });
}

class ContextProblems {
 public:
  explicit ContextProblems(const TrainConfig& c) : c_(c), p_(c.parallel) {}

  std::vector<std::string> collect() {
    names();
    if (p_.context_parallel_size == 1) return std::move(list_);
    const std::int64_t cp = p_.context_parallel_size;
    if (uses(p_, ContextMethod::kA2a)) heads("--context-parallel-size", cp, "a2a");
    levels();
    const std::int64_t length = c_.data.seq_length, multiple = sequence_multiple(p_);
    if (c_.training.strict_sequence_length && length % multiple != 0) {
      add("--strict-sequence-length: --seq-length {} is not divisible by {}, as --context-parallel-size {} "
          "with "
          "--tensor-model-parallel-size {}{} needs",
          length, multiple, cp, p_.tensor_model_parallel_size,
          p_.sequence_parallel ? " and --sequence-parallel" : "");
    }
    return std::move(list_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    list_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  void names() {
    for (const std::string& name : p_.cp_comm_type) {
      if (!method_of(name)) add("--cp-comm-type {}: it is p2p, all_gather, a2a or a2a+p2p", name);
    }
    const std::size_t count = p_.cp_comm_type.size();
    if (count > 1 && c_.model.num_layers > 0 && static_cast<std::int64_t>(count) != c_.model.num_layers) {
      add("--cp-comm-type names {} methods, and the model has {} layers: give one, or one for each layer",
          count, c_.model.num_layers);
    }
  }

  // `size` ranks share the heads of a tensor-parallel rank.
  void heads(const char* option, std::int64_t size, const char* method) {
    const std::int64_t tp = p_.tensor_model_parallel_size;
    const ModelConfig m = resolved(c_.model);
    if (m.num_attention_heads == 0 || m.num_attention_heads % tp != 0) return;  // their own problem
    const std::int64_t heads = m.num_attention_heads / tp;
    const std::int64_t groups = std::max<std::int64_t>(m.num_query_groups / tp, 1);
    if (heads % size != 0) {
      add("--cp-comm-type {}: {} heads (--num-attention-heads {} over tensor parallel {}) do not divide by "
          "{} {}; "
          "p2p and all_gather take any number of heads",
          method, heads, m.num_attention_heads, tp, option, size);
    } else if (groups % size != 0 && size % groups != 0) {
      add("--cp-comm-type {}: of {} key/value heads (--num-query-groups {} over tensor parallel {}) and {} "
          "{} "
          "neither divides the other; p2p and all_gather take any number",
          method, groups, m.num_query_groups, tp, option, size);
    }
  }

  void levels() {
    const std::int64_t cp = p_.context_parallel_size;
    const auto& words = p_.hierarchical_context_parallel_sizes;
    if (!uses(p_, ContextMethod::kA2aP2p)) return;
    const auto [a2a, p2p] = level_sizes(p_);
    if (a2a * p2p != cp) {
      add("--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes A P with A x P = "
          "--context-parallel-size {}: A neighbours exchange heads, P such groups form rings (given: {})",
          cp, words.empty() ? "none" : fmt::format("{}", fmt::join(words, " ")));
      return;
    }
    heads("--hierarchical-context-parallel-sizes", a2a, "a2a+p2p");
  }

  const TrainConfig& c_;
  const ParallelConfig& p_;
  std::vector<std::string> list_;
};

}  // namespace

std::vector<ContextMethod> context_methods(const ParallelConfig& p) {
  std::vector<ContextMethod> methods;
  for (const std::string& name : p.cp_comm_type)
    methods.push_back(method_of(name).value_or(ContextMethod::kP2p));
  return methods;
}

nn::SequenceOrder sequence_order(const ParallelConfig& p) {
  using Order = ParallelConfig::SequenceOrder;
  if (p.cp_sequence_order != Order::kAuto) {
    return p.cp_sequence_order == Order::kZigzag ? nn::SequenceOrder::kZigzag
                                                 : nn::SequenceOrder::kContiguous;
  }
  const std::vector<ContextMethod> methods = context_methods(p);
  const bool whole =
      std::all_of(methods.begin(), methods.end(), [](ContextMethod m) { return m == ContextMethod::kA2a; });
  return whole ? nn::SequenceOrder::kContiguous : nn::SequenceOrder::kZigzag;
}

int head_exchange(const ParallelConfig& p) {
  if (p.context_parallel_size == 1 || !uses(p, ContextMethod::kA2aP2p)) return 0;
  return static_cast<int>(level_sizes(p)[0]);
}

std::int64_t sequence_multiple(const ParallelConfig& p) {
  const std::int64_t tp = p.sequence_parallel ? p.tensor_model_parallel_size : 1;
  if (p.context_parallel_size == 1) return tp;
  return nn::SequenceCut::multiple(sequence_order(p), static_cast<int>(p.context_parallel_size), tp);
}

std::vector<std::string> context_problems(const TrainConfig& config) {
  return ContextProblems(config).collect();
}

}  // namespace weft
