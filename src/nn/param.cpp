#include "nn/param.hpp"

#include <algorithm>

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

namespace {

template <class T>
T from_double(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return T(static_cast<float>(value));
  }
}

// Fills the local part of one logical tensor; rows of `out` are its local rows.
template <class T>
void draw(Workers& workers, const LogicalTensor& part, const Tensor& out, RandomKey key) {
  const std::int64_t global_columns = part.global.rank() > 1 ? part.global[-1] : 1;
  const std::int64_t rows = out.dim(0);
  const std::int64_t columns = out.rank() > 1 ? out.dim(1) : 1;
  const std::int64_t ld = out.rank() > 1 ? out.ld() : 1;
  const std::int64_t row0 = part.cut == 0 ? part.begin : 0;
  const std::int64_t column0 = part.cut == 1 ? part.begin : 0;
  T* data = out.data<T>();
  workers.parallel_for(
      rows, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(columns, 1)),
      [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
          for (std::int64_t c = 0; c < columns; ++c) {
            const bool padding = row0 + r >= part.global[0] || column0 + c >= global_columns;
            double value = 0;
            if (!padding && part.init.kind == Init::Kind::kOnes) value = 1;
            if (!padding && part.init.kind == Init::Kind::kNormal) {
              value = part.init.std *
                      normal(key, static_cast<std::uint64_t>((row0 + r) * global_columns + column0 + c));
            }
            data[r * ld + c] = from_double<T>(value);
          }
        }
      });
}

}  // namespace

void initialize(Workers& workers, const Param& param, const Tensor& weight, RandomKey seed) {
  for (const LogicalTensor& part : param.parts()) {
    const Tensor out = param.part_of(weight, part);
    const RandomKey key = seed.with("init").with(part.name);
    switch (out.dtype()) {
      case DType::kF64:
        draw<double>(workers, part, out, key);
        break;
      case DType::kF32:
        draw<float>(workers, part, out, key);
        break;
      case DType::kBF16:
        draw<bf16>(workers, part, out, key);
        break;
      case DType::kF16:
        draw<f16>(workers, part, out, key);
        break;
      default:
        fail("{}: cannot initialise a tensor of {}", part.name, name_of(out.dtype()));
    }
  }
}

}  // namespace weft
