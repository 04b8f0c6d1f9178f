#include "comm/calls.hpp"

namespace weft::calls {
namespace {

void check_tensor(const Who& who, const char* call, const Tensor& x) {
  WEFT_CHECK(x.defined(), "group '{}': {} of an undefined tensor", who.name, call);
  // What ranks tell each other beside the model lies in host memory, whatever they compute on.
  const bool from_host = x.device().kind == DeviceKind::kCpu && who.device == DeviceKind::kCuda;
  // A rehearsal: among planned ranks, but on the device.
  const bool planned = who.device == DeviceKind::kMeta && x.device().kind == DeviceKind::kCuda;
  WEFT_CHECK(x.device().kind == who.device || from_host || planned,
             "group '{}': {} of a tensor on {}, but this group works on {}", who.name, call,
             name_of(x.device().kind), name_of(who.device));
}

// `full` holds `size` times the rows of `shard`.
void check_sharded(const Who& who, const char* call, const Tensor& shard, const Tensor& full) {
  check_tensor(who, call, shard);
  check_tensor(who, call, full);
  WEFT_CHECK(shard.dtype() == full.dtype(), "group '{}': {} between {} and {}", who.name, call,
             name_of(shard.dtype()), name_of(full.dtype()));
  bool fits = shard.rank() > 0 && shard.rank() == full.rank() && full.dim(0) == who.size * shard.dim(0);
  for (int i = 1; fits && i < shard.rank(); ++i) fits = shard.dim(i) == full.dim(i);
  WEFT_CHECK(fits, "group '{}' of {} ranks: {} between the shard {} and the full {}", who.name, who.size,
             call, to_string(shard.shape()), to_string(full.shape()));
}

// `rows` has one count per rank, and together they are the rows of x.
void check_rows(const Who& who, const Tensor& x, const std::vector<std::int64_t>& rows) {
  check_tensor(who, "all_to_all", x);
  std::int64_t sum = 0;
  bool valid = x.rank() > 0 && rows.size() == static_cast<std::size_t>(who.size);
  for (const std::int64_t n : rows) {
    valid = valid && n >= 0;
    sum += n;
  }
  WEFT_CHECK(valid && sum == x.dim(0),
             "group '{}' of {} ranks: all_to_all of {} with {} row counts that add to {}", who.name, who.size,
             to_string(x.shape()), rows.size(), sum);
}

void check_peer(const Who& who, const char* what, int peer) {
  WEFT_CHECK(peer >= 0 && peer < who.size, "group '{}' of {} ranks: {} rank {}", who.name, who.size, what,
             peer);
}

}  // namespace

std::uint64_t all_reduce(const Who& who, const Tensor& x) {
  check_tensor(who, "all_reduce", x);
  const auto n = static_cast<std::uint64_t>(who.size);
  return 2 * (n - 1) * x.bytes() / n;
}

std::uint64_t all_gather(const Who& who, const Tensor& shard, const Tensor& full) {
  check_sharded(who, "all_gather", shard, full);
  return static_cast<std::uint64_t>(who.size - 1) * shard.bytes();
}

std::uint64_t reduce_scatter(const Who& who, const Tensor& full, const Tensor& shard) {
  check_sharded(who, "reduce_scatter", shard, full);
  return static_cast<std::uint64_t>(who.size - 1) * shard.bytes();
}

std::uint64_t all_to_all(const Who& who, const Tensor& send, const std::vector<std::int64_t>& send_rows,
                         const Tensor& receive, const std::vector<std::int64_t>& receive_rows) {
  check_rows(who, send, send_rows);
  check_rows(who, receive, receive_rows);
  bool fits = send.rank() == receive.rank() && send.dtype() == receive.dtype();
  std::uint64_t row_bytes = bytes_of(send.dtype());
  for (int i = 1; fits && i < send.rank(); ++i) {
    fits = send.dim(i) == receive.dim(i);
    row_bytes *= static_cast<std::uint64_t>(send.dim(i));
  }
  WEFT_CHECK(fits, "group '{}': all_to_all from {} {} to {} {}", who.name, name_of(send.dtype()),
             to_string(send.shape()), name_of(receive.dtype()), to_string(receive.shape()));
  const std::int64_t own = send_rows[static_cast<std::size_t>(who.rank)];
  return static_cast<std::uint64_t>(send.dim(0) - own) * row_bytes;
}

std::uint64_t broadcast(const Who& who, const Tensor& x, int root) {
  check_tensor(who, "broadcast", x);
  check_peer(who, "broadcast from", root);
  return who.size > 1 && who.rank == root ? x.bytes() : 0;
}

std::uint64_t send_receive(const Who& who, const std::vector<Communicator::Message>& sends,
                           const std::vector<Communicator::Message>& receives) {
  std::uint64_t bytes = 0;
  for (const Communicator::Message& m : sends) {
    check_peer(who, "send to", m.peer);
    check_tensor(who, "send", m.tensor);
    if (m.peer != who.rank) bytes += m.tensor.bytes();
  }
  for (const Communicator::Message& m : receives) {
    check_peer(who, "receive from", m.peer);
    check_tensor(who, "receive", m.tensor);
  }
  return bytes;
}

std::vector<Tensor> tensors_of(const std::vector<Communicator::Message>& messages,
                               const std::vector<Communicator::Message>& more) {
  std::vector<Tensor> tensors;
  for (const auto* list : {&messages, &more}) {
    for (const Communicator::Message& m : *list) tensors.push_back(m.tensor);
  }
  return tensors;
}

const char* name_of(const std::vector<Communicator::Message>& sends,
                    const std::vector<Communicator::Message>& receives) {
  if (sends.empty() == receives.empty()) return "send_receive";
  return receives.empty() ? "send" : "receive";
}

std::uint64_t bytes_of(const std::vector<Communicator::Message>& sends,
                       const std::vector<Communicator::Message>& receives) {
  std::uint64_t bytes = 0;
  for (const auto* messages : {&sends, &receives}) {
    for (const Communicator::Message& m : *messages) bytes += m.tensor.bytes();
  }
  return bytes;
}

}  // namespace weft::calls
