#include "nn/moe/exchange.hpp"

#include <algorithm>
#include <numeric>

#include "ops/elementwise.hpp"

namespace weft::nn {
namespace {

// Values [n] or [n, k] as rows of one element.
Tensor column(const Tensor& values) {
  return values.view({values.elems(), 1});
}

// Choices [n, k] by their number among this rank's experts, in the order of these.
std::shared_ptr<const ExpertExchange::Plan> ordered(Lane& lane, const Tensor& experts,
                                                    const ExpertPlacement& placement, std::int64_t capacity) {
  const ops::ExpertOrder order = ops::expert_order(lane, experts, placement.local(),
                                                   placement.padded ? placement.per_expert(capacity) : 0);
  auto plan = std::make_shared<ExpertExchange::Plan>();
  plan->rows = order.rows;
  plan->offsets = order.offsets;
  plan->size = placement.rows(experts.dim(0), capacity);
  return plan;
}

Tensor rows_at_experts(Lane& lane, const ExpertExchange::Plan& plan, const Tensor& x) {
  const Tensor out = lane.alloc(x.dtype(), {plan.size, x.dim(1)}, "tokens at experts");
  ops::spread_rows(lane, x, plan.rows, out);
  return out;
}

Tensor values_at_experts(Lane& lane, const ExpertExchange::Plan& plan, const Tensor& values) {
  const Tensor out = lane.alloc(values.dtype(), {plan.size}, "weights at experts");
  ops::spread_values(lane, values, plan.rows, out);
  return out;
}

}  // namespace

std::int64_t ExpertPlacement::rows(std::int64_t tokens, std::int64_t capacity) const {
  const std::int64_t chosen = tokens * std::min<std::int64_t>(topk, local());
  const std::int64_t of_each = per_expert(capacity);
  if (padded) return local() * of_each;
  return capacity == 0 ? chosen : std::min(chosen, local() * of_each);
}

// --- LocalExchange

std::shared_ptr<const ExpertExchange::Plan> LocalExchange::plan(Lane& lane, const Tensor& experts,
                                                                std::int64_t capacity) const {
  return ordered(lane, experts, placement_, capacity);
}

Moved LocalExchange::spread(Lane& lane, const Plan& plan, const Tensor& x) const {
  return Moved(Async<Tensor>(rows_at_experts(lane, plan, x)));
}

Moved LocalExchange::collect(Lane& lane, const Plan& plan, const Tensor& y) const {
  return Moved(Async<Tensor>(ops::collect_rows(lane, y, plan.rows)));
}

Moved LocalExchange::spread_values(Lane& lane, const Plan& plan, const Tensor& values) const {
  return Moved(Async<Tensor>(values_at_experts(lane, plan, values)));
}

Moved LocalExchange::collect_values(Lane& lane, const Plan& plan, const Tensor& y) const {
  return Moved(Async<Tensor>(ops::collect_values(lane, y, plan.rows)));
}

// --- AllGatherExchange: the same of all tokens of the group, on every rank for its own experts

std::shared_ptr<const ExpertExchange::Plan> AllGatherExchange::plan(Lane& lane, const Tensor& experts,
                                                                    std::int64_t capacity) const {
  const Tensor all = group_.all_gather(lane, experts).wait(lane);
  return ordered(lane, ops::own_experts(lane, all, placement_.first(), placement_.local()), placement_,
                 capacity);
}

Moved AllGatherExchange::spread(Lane& lane, const Plan& plan, const Tensor& x) const {
  return Moved(group_.all_gather(lane, x),
               [&plan](Lane& l, const Tensor& all) { return rows_at_experts(l, plan, all); });
}

Moved AllGatherExchange::collect(Lane& lane, const Plan& plan, const Tensor& y) const {
  return Moved(group_.reduce_scatter(lane, ops::collect_rows(lane, y, plan.rows)));
}

Moved AllGatherExchange::spread_values(Lane& lane, const Plan& plan, const Tensor& values) const {
  return Moved(group_.all_gather(lane, values),
               [&plan](Lane& l, const Tensor& all) { return values_at_experts(l, plan, all); });
}

Moved AllGatherExchange::collect_values(Lane& lane, const Plan& plan, const Tensor& y) const {
  return Moved(group_.reduce_scatter(lane, ops::collect_values(lane, y, plan.rows)));
}

// --- AllToAllExchange

struct AllToAllExchange::Routes final : Plan {
  std::int64_t pairs = 0;   // n · k: rows before they are sent, some of them perhaps nobody's
  std::int64_t chosen = 0;  // of them somebody's
  std::vector<std::int64_t> send, receive;  // rows for and from each rank of the group
  std::int64_t received = 0;
  Tensor arrange;  // [size, 1] i32: where a received row lies at this rank's experts; −1: nothing received
};

namespace {

// counts[r][e]: how many choices of rank r fell on expert e. On a meta lane, which has no values: as many on
// each.
std::vector<std::vector<std::int64_t>> counts_of(Lane& lane, const Tensor& offsets, std::int64_t pairs,
                                                 Communicator& group) {
  const std::int64_t experts = offsets.dim(0) - 1;
  const Tensor all = group.all_gather(lane, offsets.view({1, experts + 1})).wait(lane);
  std::vector<std::vector<std::int64_t>> counts(
      static_cast<std::size_t>(group.size()),
      std::vector<std::int64_t>(static_cast<std::size_t>(experts), pairs / experts));
  if (lane.meta()) return counts;
  const std::vector<std::int32_t> values = ops::to_host<std::int32_t>(lane, all);
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const auto* row = values.data() + r * static_cast<std::size_t>(experts + 1);
    for (std::size_t e = 0; e < counts[r].size(); ++e) counts[r][e] = row[e + 1] - row[e];
  }
  return counts;
}

// Rows come in the order of their senders, and of their experts from each. They are to lie in the order of
// experts, and of senders in each: the row of each, and offsets of experts.
struct Arrangement {
  std::vector<std::int32_t> rows, offsets;
};
Arrangement arrangement(const std::vector<std::vector<std::int64_t>>& counts, std::int64_t first,
                        std::int64_t local, std::int64_t padded_to) {
  Arrangement a;
  std::vector<std::vector<std::int64_t>> start(counts.size());
  std::int64_t at = 0;
  for (std::int64_t e = 0; e < local; ++e) {
    a.offsets.push_back(static_cast<std::int32_t>(at));
    const std::int64_t begin = at;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      start[r].push_back(at);
      at += counts[r][static_cast<std::size_t>(first + e)];
    }
    WEFT_CHECK(padded_to == 0 || at - begin <= padded_to, "{} rows for an expert of {}", at - begin,
               padded_to);
    if (padded_to > 0) at = begin + padded_to;
  }
  a.offsets.push_back(static_cast<std::int32_t>(at));
  for (std::size_t r = 0; r < counts.size(); ++r) {
    for (std::int64_t e = 0; e < local; ++e) {
      for (std::int64_t i = 0; i < counts[r][static_cast<std::size_t>(first + e)]; ++i) {
        a.rows.push_back(static_cast<std::int32_t>(start[r][static_cast<std::size_t>(e)] + i));
      }
    }
  }
  return a;
}

}  // namespace

std::shared_ptr<const ExpertExchange::Plan> AllToAllExchange::plan(Lane& lane, const Tensor& experts,
                                                                   std::int64_t capacity) const {
  const std::int64_t local = placement_.local(), group = group_.size();
  auto routes = std::make_shared<Routes>();
  const ops::ExpertOrder order = ops::expert_order(lane, experts, placement_.experts);
  routes->rows = order.rows;
  routes->pairs = experts.elems();
  routes->size = placement_.rows(experts.dim(0) * group, capacity);
  const auto counts = counts_of(lane, order.offsets, routes->pairs, group_);
  const auto of = [&](std::int64_t rank, std::int64_t first) {
    const auto* begin = counts[static_cast<std::size_t>(rank)].data() + first;
    return std::accumulate(begin, begin + local, std::int64_t{0});
  };
  for (std::int64_t r = 0; r < group; ++r) {
    routes->send.push_back(of(group_.rank(), r / placement_.etp * local));
    routes->receive.push_back(of(r, placement_.first()));
    routes->received += routes->receive.back();
  }
  routes->chosen =
      std::accumulate(routes->send.begin(), routes->send.end(), std::int64_t{0}) / placement_.etp;
  WEFT_CHECK(lane.meta() || routes->received <= routes->size, "{} rows arrive where {} are planned",
             routes->received, routes->size);
  routes->received = std::min(routes->received, routes->size);
  Arrangement a;
  if (!lane.meta()) {
    a = arrangement(counts, placement_.first(), local,
                    placement_.padded ? placement_.per_expert(capacity) : 0);
    a.rows.resize(static_cast<std::size_t>(routes->size), -1);
  }
  routes->arrange = lane.alloc(DType::kI32, {routes->size, 1}, "arrangement of tokens");
  routes->offsets = lane.alloc(DType::kI32, {local + 1}, "rows of experts");
  ops::from_host(lane, a.rows, routes->arrange);
  ops::from_host(lane, a.offsets, routes->offsets);
  return routes;
}

Moved AllToAllExchange::send(Lane& lane, const Routes& routes, const Tensor& sorted) const {
  const std::int64_t width = sorted.dim(1), etp = placement_.etp;
  Tensor out = sorted;
  if (etp > 1) {  // each expert's rows for all ranks that have a part of it
    out = lane.alloc(sorted.dtype(), {etp * routes.pairs, width}, "tokens to send");
    std::int64_t from = 0, to = 0;
    for (std::size_t r = 0; r < routes.send.size(); ++r) {
      const std::int64_t rows = routes.send[r];
      ops::copy(lane, sorted.slice(from, rows), out.slice(to, rows));
      to += rows;
      if ((static_cast<std::int64_t>(r) + 1) % etp == 0) from += rows;
    }
  }
  const Tensor arrived = lane.alloc(sorted.dtype(), {routes.size, width}, "tokens received");
  Async<Tensor> moving = group_.all_to_all_into(lane, out.slice(0, etp * routes.chosen), routes.send,
                                                arrived.slice(0, routes.received), routes.receive);
  return Moved(std::move(moving), [&routes, arrived](Lane& l, const Tensor&) {
    const Tensor at_experts = l.alloc(arrived.dtype(), arrived.shape(), "tokens at experts");
    ops::spread_rows(l, arrived, routes.arrange, at_experts);
    return at_experts;
  });
}

Moved AllToAllExchange::send_back(Lane& lane, const Routes& routes, const Tensor& y) const {
  const std::int64_t width = y.dim(1), etp = placement_.etp;
  const Tensor in_order = ops::collect_rows(lane, y, routes.arrange);
  const Tensor back = lane.alloc(y.dtype(), {etp * routes.pairs, width}, "tokens returned");
  Async<Tensor> moving = group_.all_to_all_into(lane, in_order.slice(0, routes.received), routes.receive,
                                                back.slice(0, etp * routes.chosen), routes.send);
  return Moved(std::move(moving), [&routes, back, etp](Lane& l, const Tensor&) {
    if (etp == 1) return back;
    const Tensor sum = l.alloc(back.dtype(), {routes.pairs, back.dim(1)}, "tokens returned");
    std::int64_t from = 0, to = 0;
    for (std::size_t r = 0; r < routes.send.size(); ++r) {
      const std::int64_t rows = routes.send[r];
      const Tensor part = back.slice(from, rows), into = sum.slice(to, rows);
      if (static_cast<std::int64_t>(r) % etp == 0) {
        ops::copy(l, part, into);
      } else {
        ops::add_in_place(l, into, part);
      }
      from += rows;
      if ((static_cast<std::int64_t>(r) + 1) % etp == 0) to += rows;
    }
    return sum;
  });
}

Moved AllToAllExchange::spread(Lane& lane, const Plan& plan, const Tensor& x) const {
  const auto& routes = dynamic_cast<const Routes&>(plan);
  const Tensor sorted = lane.alloc(x.dtype(), {routes.pairs, x.dim(1)}, "tokens by expert");
  ops::spread_rows(lane, x, routes.rows, sorted);
  return send(lane, routes, sorted);
}

Moved AllToAllExchange::collect(Lane& lane, const Plan& plan, const Tensor& y) const {
  const auto& routes = dynamic_cast<const Routes&>(plan);
  return send_back(lane, routes, y).then([&routes](Lane& l, const Tensor& sorted) {
    return ops::collect_rows(l, sorted, routes.rows);
  });
}

Moved AllToAllExchange::spread_values(Lane& lane, const Plan& plan, const Tensor& values) const {
  const auto& routes = dynamic_cast<const Routes&>(plan);
  const Tensor sorted = lane.alloc(values.dtype(), {routes.pairs}, "weights by expert");
  ops::spread_values(lane, values, routes.rows, sorted);
  return send(lane, routes, column(sorted)).then([](Lane&, const Tensor& rows) {
    return rows.view({rows.dim(0)});
  });
}

Moved AllToAllExchange::collect_values(Lane& lane, const Plan& plan, const Tensor& y) const {
  const auto& routes = dynamic_cast<const Routes&>(plan);
  return send_back(lane, routes, column(y)).then([&routes](Lane& l, const Tensor& sorted) {
    return ops::collect_values(l, sorted.view({sorted.dim(0)}), routes.rows);
  });
}

}  // namespace weft::nn
