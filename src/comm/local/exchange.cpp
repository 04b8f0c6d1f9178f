#include "comm/local/exchange.hpp"

#include <fmt/format.h>

#include "comm/reduce.hpp"

namespace weft::local {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kSend:
      return "send";
    case Kind::kReceive:
      return "receive";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kSplit:
      return "split";
  }
  return "?";
}

std::string to_string(const Call& call) {
  const std::string tensor = fmt::format("{} {}", weft::name_of(call.dtype), to_string(call.shape));
  const char* name = name_of(call.kind);
  switch (call.kind) {
    case Kind::kAllReduce:
      return fmt::format("{}({}, {})", name, tensor, call.op == ReduceOp::kSum ? "sum" : "max");
    case Kind::kAllGather:
      return fmt::format("{}(shard {})", name, tensor);
    case Kind::kReduceScatter:
      return fmt::format("{}(shard {})", name, tensor);
    case Kind::kAllToAll:
      return fmt::format("{}(rows of {}, sends [{}], receives [{}])", name, tensor,
                         fmt::join(call.send_rows, ", "), fmt::join(call.receive_rows, ", "));
    case Kind::kBroadcast:
      return fmt::format("{}({}, root {})", name, tensor, call.root);
    case Kind::kSend:
    case Kind::kReceive:
      return fmt::format("{}({})", name, tensor);
    case Kind::kBarrier:
      return "barrier()";
    case Kind::kSplit:
      return fmt::format("split(color {}, '{}')", call.color, call.split_name);
  }
  return name;
}

namespace {

bool same_signature(const Call& a, const Call& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.shape == b.shape && a.op == b.op && a.root == b.root;
}

}  // namespace

Mismatch find_mismatch(const std::vector<Call>& calls) {
  if (calls[0].kind == Kind::kSend) {
    const Call &send = calls[0], &receive = calls[1];
    return {send.dtype != receive.dtype || send.shape != receive.shape, 1, 0};
  }
  for (std::size_t r = 1; r < calls.size(); ++r) {
    if (!same_signature(calls[r], calls[0])) return {true, r, 0};
  }
  if (calls[0].kind == Kind::kAllToAll) {
    for (std::size_t r = 1; r < calls.size(); ++r) {
      for (std::size_t s = 0; s < r; ++s) {
        if (calls[s].send_rows[r] != calls[r].receive_rows[s] ||
            calls[r].send_rows[s] != calls[s].receive_rows[r]) {
          return {true, r, s};
        }
      }
    }
    for (std::size_t r = 0; r < calls.size(); ++r) {
      if (calls[r].send_rows[r] != calls[r].receive_rows[r]) return {true, r, r};
    }
  }
  if (calls[0].kind == Kind::kSplit) {
    for (std::size_t r = 1; r < calls.size(); ++r) {
      for (std::size_t s = 0; s < r; ++s) {
        if (calls[r].color >= 0 && calls[r].color == calls[s].color &&
            calls[r].split_name != calls[s].split_name) {
          return {true, r, s};
        }
      }
    }
  }
  return {};
}

void execute(const std::vector<Call>& calls) {
  const Call& first = calls[0];
  const std::size_t n = calls.size(), element = bytes_of(first.dtype);
  std::vector<View> in, out;
  switch (first.kind) {
    case Kind::kAllReduce:
      for (const Call& call : calls) in.push_back(call.in[0]);
      return reduce_in_order(first.dtype, first.op, in, in);
    case Kind::kReduceScatter:
      for (std::size_t r = 0; r < n; ++r) {
        in.clear();
        for (const Call& call : calls) in.push_back(call.in[r]);
        reduce_in_order(first.dtype, ReduceOp::kSum, in, calls[r].out);
      }
      return;
    case Kind::kAllGather:
      for (std::size_t from = 0; from < n; ++from) {
        for (const Call& to : calls) copy_view(to.out[from], calls[from].in[0], element);
      }
      return;
    case Kind::kAllToAll:
      for (std::size_t from = 0; from < n; ++from) {
        for (std::size_t to = 0; to < n; ++to) copy_view(calls[to].out[from], calls[from].in[to], element);
      }
      return;
    case Kind::kBroadcast:
      for (const Call& call : calls) {
        copy_view(call.in[0], calls[static_cast<std::size_t>(first.root)].in[0], element);
      }
      return;
    case Kind::kSend:
      return copy_view(calls[1].out[0], first.in[0], element);
    case Kind::kReceive:
    case Kind::kBarrier:
    case Kind::kSplit:
      return;
  }
}

}  // namespace weft::local
