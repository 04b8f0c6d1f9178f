#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/checkpoint.hpp"
#include "core/check.hpp"
#include "ops/elementwise.hpp"

namespace weft {
namespace {

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 10;
  const std::size_t shown = std::min(names.size(), kShown);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

template <class Body>
void for_each_part(const std::vector<ParamBuffer::Slot>& slots, const Body& body) {
  for (const ParamBuffer::Slot& slot : slots) {
    for (const LogicalTensor& part : slot.param->parts()) body(slot, part);
  }
}

// A tensor that was frozen when the checkpoint was written: it has a weight and no optimizer state.
bool was_frozen(const CheckpointInfo& info, const std::string& name) {
  return info.find(kWeightKind, name) != nullptr &&
         std::none_of(info.states.begin(), info.states.end(),
                      [&](const std::string& state) { return info.find(state, name) != nullptr; });
}

// Compares what a rank needs with what a source has.
class Comparison {
 public:
  using Needed = std::map<std::string, Shape>;
  explicit Comparison(std::string source) : source_(std::move(source)) {}

  // `what` precedes names in messages ("", "exp_avg of ").
  template <class Contains, class ShapeOf>
  void compare(const std::string& what, const Needed& needed, const std::vector<std::string>& held,
               bool extra_is_fine, const Contains& contains, const ShapeOf& shape_of) {
    for (const auto& [name, shape] : needed) {
      if (!contains(name)) {
        missing_.push_back(what + name);
      } else if (const Shape found = shape_of(name); found != shape) {
        different_.push_back(
            fmt::format("{}{} is {}, the model needs {}", what, name, to_string(found), to_string(shape)));
      }
    }
    if (extra_is_fine) return;
    for (const std::string& name : held) {
      if (!needed.contains(name)) extra_.push_back(what + name);
    }
  }

  void check() const {
    std::vector<std::string> problems;
    const auto add = [&](const std::vector<std::string>& names, const char* what) {
      if (names.empty()) return;
      problems.push_back(fmt::format("{}: {} {}: {}", source_, names.size(), what, listed(names)));
    };
    add(missing_, "tensors of this model are not in it");
    add(different_, "tensors have another shape");
    add(extra_, "tensors in it are not in this model");
    if (!problems.empty()) throw ConfigError(std::move(problems));
  }

 private:
  std::string source_;
  std::vector<std::string> missing_, different_, extra_;
};

// Every slot whose weight a checkpoint holds.
template <class Body>
void for_each_held(const std::vector<CheckpointPart>& parts, const Body& body) {
  for (const CheckpointPart& part : parts) {
    for (const auto* slots : {&part.buffer.slots(), &part.buffer.frozen(), &part.buffer.states()}) {
      for_each_part(*slots, body);
    }
  }
}

// Reads this rank's part of the tensors of `slots` into memory_of(slot); padding becomes zero.
template <class MemoryOf, class Read>
void read_slots(Lane& lane, const std::vector<ParamBuffer::Slot>& slots, const MemoryOf& memory_of,
                const Read& read) {
  for_each_part(slots, [&](const ParamBuffer::Slot& slot, const LogicalTensor& part) {
    Tensor local = slot.param->part_of(memory_of(slot), part);
    if (part.cut < 0) return read(part.name, -1, std::int64_t{0}, std::int64_t{0}, local);
    const std::int64_t real = part.real_count(), padding = part.count - real;
    const auto range = [&](std::int64_t begin, std::int64_t count) {
      return part.cut == 0 ? local.slice(begin, count) : local.slice_columns(begin, count);
    };
    if (padding > 0) ops::fill(lane, range(real, padding), 0);
    if (real > 0) read(part.name, part.cut, part.begin, real, range(0, real));
  });
}

// The same of every tensor that is trained, into `owned` (see ParamBuffer).
template <class Read>
void read_owned(Lane& lane, const ParamBuffer& buffer, const Tensor& owned, const Read& read) {
  const Tensor flat =
      buffer.distributed() && owned.raw() != buffer.weights().raw() ? buffer.scratch() : owned;
  read_slots(
      lane, buffer.slots(), [&](const ParamBuffer::Slot& slot) { return ParamBuffer::piece(flat, slot); },
      read);
  buffer.keep_owned(lane, flat, owned);
}

void read_weights(Lane& lane, const WeightSource& source, const CheckpointPart& part) {
  const ParamBuffer& buffer = part.buffer;
  const Tensor& flat = part.optimizer != nullptr ? part.optimizer->master() : buffer.weights();
  const auto read = [&](const std::string& name, int dim, std::int64_t begin, std::int64_t count,
                        const Tensor& out) {
    ops::fill_on_host(lane, out,
                      [&](const Tensor& host) { source.read(lane, name, dim, begin, count, host); });
  };
  read_owned(lane, buffer, flat, read);
  for (const auto* slots : {&buffer.frozen(), &buffer.states()}) {
    read_slots(
        lane, *slots, [](const ParamBuffer::Slot& slot) { return slot.param->weight(); }, read);
  }
  if (part.optimizer != nullptr) part.optimizer->publish(lane);
}

void compare_weights(Comparison& comparison, const WeightSource& source,
                     const std::vector<CheckpointPart>& parts, bool part_of_model) {
  Comparison::Needed needed;
  for_each_held(parts, [&](const ParamBuffer::Slot&, const LogicalTensor& part) {
    needed.emplace(part.name, part.global);
  });
  comparison.compare(
      "", needed, source.names(), part_of_model,
      [&](const std::string& name) { return source.contains(name); },
      [&](const std::string& name) { return source.shape(name); });
}

void check_states(const CheckpointInfo& info, const std::vector<Optimizer::State>& states) {
  std::vector<std::string> needed;
  for (const Optimizer::State& state : states) needed.push_back(state.name);
  if (needed == info.states) return;
  const auto text = [](const std::vector<std::string>& names) {
    return names.empty() ? std::string("no optimizer state") : fmt::format("{}", fmt::join(names, ", "));
  };
  config_fail(
      "{}: holds {}, this run's optimizer needs {}. Train with the same --optimizer, or give --no-load-optim",
      info.folder.string(), text(info.states), text(needed));
}

}  // namespace

void load_checkpoint(Lane& lane, const CheckpointReader& reader, const std::vector<CheckpointPart>& parts,
                     const LoadOptions& options) {
  const CheckpointInfo& info = reader.info();
  const auto states_of = [&](const CheckpointPart& part) {
    return options.optimizer_state ? part.optimizer->state() : std::vector<Optimizer::State>{};
  };
  const std::vector<Optimizer::State> states = states_of(parts.front());
  if (options.optimizer_state) check_states(info, states);
  Comparison comparison(reader.description());
  compare_weights(comparison, reader, parts, options.part_of_model);
  // State of what was frozen, or is now, may be missing or left over.
  Comparison::Needed needed;
  std::set<std::string> frozen;
  for (const CheckpointPart& part : parts) {
    for_each_part(part.buffer.slots(), [&](const ParamBuffer::Slot&, const LogicalTensor& tensor) {
      if (!was_frozen(info, tensor.name)) needed.emplace(tensor.name, tensor.global);
    });
    for_each_part(part.buffer.frozen(),
                  [&](const ParamBuffer::Slot&, const LogicalTensor& tensor) { frozen.insert(tensor.name); });
  }
  for (const Optimizer::State& state : states) {
    std::vector<std::string> held;
    for (const CheckpointTensor& tensor : info.tensors) {
      if (tensor.kind == state.name && !frozen.contains(tensor.name)) held.push_back(tensor.name);
    }
    comparison.compare(
        state.name + " of ", needed, held, options.part_of_model,
        [&](const std::string& name) { return info.find(state.name, name) != nullptr; },
        [&](const std::string& name) { return info.find(state.name, name)->shape; });
  }
  comparison.check();

  for (const CheckpointPart& part : parts) {
    for (const Optimizer::State& state : states_of(part)) {
      read_owned(
          lane, part.buffer, state.flat,
          [&](const std::string& name, int dim, std::int64_t begin, std::int64_t count, const Tensor& out) {
            if (was_frozen(info, name)) return ops::fill(lane, out, 0);
            reader.read_kind(lane, state.name, name, dim, begin, count, out);
          });
    }
    if (options.optimizer_state) part.optimizer->set_steps(info.optimizer_steps);
    read_weights(lane, reader, part);
  }
}

void load_weights(Lane& lane, const WeightSource& source, const std::vector<CheckpointPart>& parts,
                  bool part_of_model) {
  Comparison comparison(source.description());
  compare_weights(comparison, source, parts, part_of_model);
  comparison.check();
  for (const CheckpointPart& part : parts) read_weights(lane, source, part);
}

}  // namespace weft
