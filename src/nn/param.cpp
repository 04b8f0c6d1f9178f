#include "nn/param.hpp"

#include <algorithm>

#include "ops/elementwise.hpp"
#include "ops/normal.hpp"

namespace weft {

Shape LogicalTensor::local_shape() const {
  Shape shape = global;
  if (cut >= 0) shape.set(cut, count);
  return shape;
}

std::int64_t LogicalTensor::real_count() const {
  if (cut < 0) return count;
  return std::clamp<std::int64_t>(global[cut] - begin, 0, count);
}

Param::Param(std::string name, Shape local, std::vector<LogicalTensor> parts, const ParamTraits& traits)
    : name_(std::move(name)), local_(local), parts_(std::move(parts)), traits_(traits) {
  std::int64_t rows = 0;
  for (const LogicalTensor& part : parts_) {
    WEFT_CHECK(part.local_row == rows, "{}: part {} starts at row {}, expected {}", name_, part.name,
               part.local_row, rows);
    rows += part.local_shape()[0];
  }
  WEFT_CHECK(rows == local_[0], "{}: parts have {} rows, the tensor has {}", name_, rows, local_[0]);
}

void Param::bind(Tensor weight, Tensor main_grad, GradSink* sink) {
  expect_shape(weight, local_, name_.c_str());
  WEFT_CHECK(trains() || !main_grad.defined(), "{} is frozen and gets a gradient", name_);
  if (main_grad.defined()) expect_shape(main_grad, local_, name_.c_str());
  weight_ = std::move(weight);
  main_grad_ = std::move(main_grad);
  sink_ = sink;
}

Tensor Param::part_of(const Tensor& whole, const LogicalTensor& part) const {
  return whole.slice(part.local_row, part.local_shape()[0]);
}

void Param::ready() const {
  if (!trains()) return;
  ++contributions_;
  WEFT_CHECK(contributions_ <= expected_, "{}: contribution {} of {} in one step", name_, contributions_,
             expected_);
  if (contributions_ == expected_ && sink_ != nullptr) sink_->gradient_ready(*this);
}

Param* ParamSet::add(const std::string& name, std::vector<LogicalTensor> parts, const ParamTraits& traits) {
  Shape local = parts.front().local_shape();
  std::int64_t rows = 0;
  for (LogicalTensor& part : parts) {
    part.local_row = rows;
    rows += part.local_shape()[0];
  }
  local.set(0, rows);
  if (Param* existing = find(name)) {
    WEFT_CHECK(existing->local_shape() == local, "{} is {} and {} in two builds over one set of parameters",
               name, to_string(existing->local_shape()), to_string(local));
    return existing;
  }
  params_.push_back(std::make_unique<Param>(name, local, std::move(parts), traits));
  return params_.back().get();
}

Param* ParamSet::add_tied(const std::string& name, const Param& owner) {
  if (Param* existing = find(name)) return existing;
  params_.push_back(std::make_unique<Param>(name, owner.local_shape(), owner.parts(), owner.traits()));
  params_.back()->owner_ = &owner;
  return params_.back().get();
}

Param* ParamSet::find(const std::string& name) const {
  for (const auto& param : params_) {
    if (param->name() == name) return param.get();
  }
  return nullptr;
}

void initialize(Lane& lane, const Param& param, const Tensor& weight, RandomKey seed) {
  for (const LogicalTensor& part : param.parts()) {
    const Tensor local = param.part_of(weight, part);
    Tensor real = local;  // without padding
    if (part.cut == 0) real = local.slice(0, part.real_count());
    if (part.cut == 1) real = local.slice_columns(0, part.real_count());
    if (part.real_count() < part.count) ops::fill(lane, local, 0);
    if (real.elems() == 0) continue;
    switch (part.init.kind) {
      case Init::Kind::kZeros:
      case Init::Kind::kOnes:
        ops::fill(lane, real, part.init.kind == Init::Kind::kOnes ? 1 : 0);
        break;
      case Init::Kind::kNormal:
        ops::fill_normal(lane, real, seed.with("init").with(part.name), part.init.std,
                         {.first_row = part.cut == 0 ? part.begin : 0,
                          .first_column = part.cut == 1 ? part.begin : 0,
                          .columns = part.global.rank() > 1 ? part.global[-1] : 1});
        break;
    }
  }
}

}  // namespace weft
