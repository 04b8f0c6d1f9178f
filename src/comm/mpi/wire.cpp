#include "comm/mpi/wire.hpp"

#include <cstring>

namespace weft::mpi {
namespace {

struct Fixed {
  std::uint64_t sequence;
  std::int64_t dims[Shape::kMaxRank];
  std::int32_t kind, dtype, rank, op, root, color, key;
  std::uint32_t send_rows, receive_rows, name_bytes, data_bytes;
};

}  // namespace

std::size_t longest_announcement(int ranks) {
  return sizeof(Fixed) + 2 * sizeof(std::int64_t) * static_cast<std::size_t>(ranks) + kLongestName + kInline;
}

std::size_t encode(const Call& call, std::uint64_t sequence, const std::byte* data, std::size_t data_bytes,
                   std::byte* to) {
  WEFT_CHECK(call.split_name.size() <= kLongestName, "group name '{}' has more than {} bytes",
             call.split_name, kLongestName);
  Fixed fixed{};
  fixed.sequence = sequence;
  fixed.kind = static_cast<std::int32_t>(call.kind);
  fixed.dtype = static_cast<std::int32_t>(call.dtype);
  fixed.rank = call.shape.rank();
  for (int i = 0; i < call.shape.rank(); ++i) fixed.dims[i] = call.shape[i];
  fixed.op = static_cast<std::int32_t>(call.op);
  fixed.root = call.root;
  fixed.color = call.color;
  fixed.key = call.key;
  fixed.send_rows = static_cast<std::uint32_t>(call.send_rows.size());
  fixed.receive_rows = static_cast<std::uint32_t>(call.receive_rows.size());
  fixed.name_bytes = static_cast<std::uint32_t>(call.split_name.size());
  fixed.data_bytes = static_cast<std::uint32_t>(data_bytes);
  std::byte* end = to;
  const auto put = [&end](const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(end, from, bytes);
    end += bytes;
  };
  put(&fixed, sizeof fixed);
  put(call.send_rows.data(), call.send_rows.size() * sizeof(std::int64_t));
  put(call.receive_rows.data(), call.receive_rows.size() * sizeof(std::int64_t));
  put(call.split_name.data(), call.split_name.size());
  put(data, data_bytes);
  return static_cast<std::size_t>(end - to);
}

Announcement decode(const std::byte* message, std::size_t bytes) {
  Fixed fixed{};
  const std::byte* next = message;
  const std::byte* const end = message + bytes;
  const auto take = [&](void* to, std::size_t count) {
    if (static_cast<std::size_t>(end - next) < count) fail("a message between ranks is cut short");
    if (count > 0 && to != nullptr) std::memcpy(to, next, count);
    next += count;
  };
  take(&fixed, sizeof fixed);
  if (fixed.rank < 0 || fixed.rank > Shape::kMaxRank) fail("a message between ranks is damaged");
  Announcement a;
  a.sequence = fixed.sequence;
  a.call.kind = static_cast<Kind>(fixed.kind);
  a.call.dtype = static_cast<DType>(fixed.dtype);
  a.call.shape = Shape(fixed.dims, fixed.dims + fixed.rank);
  a.call.op = static_cast<ReduceOp>(fixed.op);
  a.call.root = fixed.root;
  a.call.color = fixed.color;
  a.call.key = fixed.key;
  a.call.send_rows.resize(fixed.send_rows);
  take(a.call.send_rows.data(), fixed.send_rows * sizeof(std::int64_t));
  a.call.receive_rows.resize(fixed.receive_rows);
  take(a.call.receive_rows.data(), fixed.receive_rows * sizeof(std::int64_t));
  a.call.split_name.resize(fixed.name_bytes);
  take(a.call.split_name.data(), fixed.name_bytes);
  a.data = next;
  a.data_bytes = fixed.data_bytes;
  take(nullptr, fixed.data_bytes);
  return a;
}

}  // namespace weft::mpi
