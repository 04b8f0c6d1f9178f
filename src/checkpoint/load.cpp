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
void for_each_part(const ParamBuffer& buffer, const Body& body) {
  for (const ParamBuffer::Slot& slot : buffer.slots()) {
    for (const LogicalTensor& part : slot.param->parts()) body(slot, part);
  }
}

// Compares what a rank needs with what a source has.
class Comparison {
 public:
  Comparison(std::string source, const ParamBuffer& buffer) : source_(std::move(source)) {
    for_each_part(buffer, [&](const ParamBuffer::Slot&, const LogicalTensor& part) {
      needed_.emplace_back(part.name, part.global);
    });
  }

  // `what` precedes names in messages ("", "exp_avg of ").
  template <class Contains, class ShapeOf>
  void compare(const std::string& what, const std::vector<std::string>& held, bool extra_is_fine,
               const Contains& contains, const ShapeOf& shape_of) {
    std::set<std::string> needed;
    for (const auto& [name, shape] : needed_) {
      needed.insert(name);
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
  std::vector<std::pair<std::string, Shape>> needed_;
  std::vector<std::string> missing_, different_, extra_;
};

// Reads this rank's part of every tensor into `owned` (see ParamBuffer); padding becomes zero.
template <class Read>
void read_parts(Lane& lane, const ParamBuffer& buffer, const Tensor& owned, const Read& read) {
  const Tensor flat =
      buffer.distributed() && owned.raw() != buffer.weights().raw() ? buffer.scratch() : owned;
  for_each_part(buffer, [&](const ParamBuffer::Slot& slot, const LogicalTensor& part) {
    Tensor local = slot.param->part_of(ParamBuffer::piece(flat, slot), part);
    if (part.cut < 0) return read(part.name, -1, std::int64_t{0}, std::int64_t{0}, local);
    const std::int64_t real = part.real_count(), padding = part.count - real;
    const auto range = [&](std::int64_t begin, std::int64_t count) {
      return part.cut == 0 ? local.slice(begin, count) : local.slice_columns(begin, count);
    };
    if (padding > 0) ops::fill(lane, range(real, padding), 0);
    if (real > 0) read(part.name, part.cut, part.begin, real, range(0, real));
  });
  buffer.keep_owned(lane, flat, owned);
}

void read_weights(Lane& lane, const WeightSource& source, const ParamBuffer& buffer, Optimizer* optimizer) {
  const Tensor& flat = optimizer != nullptr ? optimizer->master() : buffer.weights();
  read_parts(
      lane, buffer, flat,
      [&](const std::string& name, int dim, std::int64_t begin, std::int64_t count, const Tensor& out) {
        ops::fill_on_host(lane, out,
                          [&](const Tensor& host) { source.read(lane, name, dim, begin, count, host); });
      });
  if (optimizer != nullptr) optimizer->publish(lane);
}

void compare_weights(Comparison& comparison, const WeightSource& source, bool part_of_model) {
  comparison.compare(
      "", source.names(), part_of_model, [&](const std::string& name) { return source.contains(name); },
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

void load_checkpoint(Lane& lane, const CheckpointReader& reader, const ParamBuffer& buffer,
                     Optimizer& optimizer, const LoadOptions& options) {
  const CheckpointInfo& info = reader.info();
  const std::vector<Optimizer::State> states =
      options.optimizer_state ? optimizer.state() : std::vector<Optimizer::State>{};
  if (options.optimizer_state) check_states(info, states);
  Comparison comparison(reader.description(), buffer);
  compare_weights(comparison, reader, options.part_of_model);
  for (const Optimizer::State& state : states) {
    std::vector<std::string> held;
    for (const CheckpointTensor& tensor : info.tensors) {
      if (tensor.kind == state.name) held.push_back(tensor.name);
    }
    comparison.compare(
        state.name + " of ", held, options.part_of_model,
        [&](const std::string& name) { return info.find(state.name, name) != nullptr; },
        [&](const std::string& name) { return info.find(state.name, name)->shape; });
  }
  comparison.check();

  for (const Optimizer::State& state : states) {
    read_parts(lane, buffer, state.flat,
               [&](const std::string& name, int dim, std::int64_t begin, std::int64_t count,
                   const Tensor& out) { reader.read_kind(lane, state.name, name, dim, begin, count, out); });
  }
  if (options.optimizer_state) optimizer.set_steps(info.optimizer_steps);
  read_weights(lane, reader, buffer, &optimizer);
}

void load_weights(Lane& lane, const WeightSource& source, const ParamBuffer& buffer, Optimizer* optimizer,
                  bool part_of_model) {
  Comparison comparison(source.description(), buffer);
  compare_weights(comparison, source, part_of_model);
  comparison.check();
  read_weights(lane, source, buffer, optimizer);
}

}  // namespace weft
