// Stands in for the kernels of mixtures of experts, which there are none of yet for this device.
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

[[noreturn]] void none(const char* op) {
  no_kernels(op, Device{DeviceKind::kCuda, 0});
}

}  // namespace

void route(Lane&, const Tensor&, const Tensor&, const Tensor&, const RouterOptions&, const Routing&) {
  none("route");
}
void route_backward(Lane&, const Tensor&, const Tensor&, const Tensor&, const RouterOptions&, const Tensor&) {
  none("route_backward");
}
std::int64_t balance_sums_scratch(const Lane&, const Tensor&, std::int64_t) {
  none("balance_sums");
}
void balance_sums(Lane&, const Tensor&, const Tensor&, const RouterOptions&, const Tensor&, const Tensor&) {
  none("balance_sums");
}
void balance_backward(Lane&, const Tensor&, const Tensor&, const Tensor&, const RouterOptions&,
                      const BalanceWeights&, const Tensor&) {
  none("balance_backward");
}
void balance_losses(Lane&, const Tensor&, const RouterOptions&, double, const Tensor&) {
  none("balance_losses");
}
void count_experts(Lane&, const Tensor&, const Tensor&) {
  none("count_experts");
}
std::int64_t drop_over_capacity_scratch(const Lane&, const Tensor&, std::int64_t) {
  none("drop_over_capacity");
}
void drop_over_capacity(Lane&, const Routing&, const Tensor&, std::int64_t, std::int64_t, bool,
                        const Tensor&) {
  none("drop_over_capacity");
}
std::int64_t expert_order_scratch(const Lane&, const Tensor&, std::int64_t) {
  none("expert_order");
}
void expert_order(Lane&, const Tensor&, std::int64_t, const ExpertOrder&, const Tensor&) {
  none("expert_order");
}
void own_experts(Lane&, const Tensor&, std::int64_t, std::int64_t, const Tensor&) {
  none("own_experts");
}
void spread_rows(Lane&, const Tensor&, const Tensor&, const Tensor&) {
  none("spread_rows");
}
void collect_rows(Lane&, const Tensor&, const Tensor&, const Tensor&) {
  none("collect_rows");
}
void spread_values(Lane&, const Tensor&, const Tensor&, const Tensor&) {
  none("spread_values");
}
void collect_values(Lane&, const Tensor&, const Tensor&, const Tensor&) {
  none("collect_values");
}
std::int64_t grouped_gemm_scratch(const Lane&, const GroupedGemm&) {
  none("grouped_gemm");
}
void grouped_gemm(Lane&, const GroupedGemm&, const Tensor&) {
  none("grouped_gemm");
}
void scaled_activation(Lane&, Activation, bool, const Tensor&, const Tensor&, const Tensor&) {
  none("scaled_activation");
}
void scaled_activation_backward(Lane&, Activation, bool, const Tensor&, const Tensor&, const Tensor&,
                                const ScaledActivationGradient&) {
  none("scaled_activation_backward");
}

}  // namespace weft::ops::cuda
