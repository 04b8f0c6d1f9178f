// The operations as the engine runs them: first the calls travel and are compared, then the data moves.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "comm/mpi/engine.hpp"
#include "comm/mpi/wire.hpp"

namespace weft::mpi {

// Contiguous memory.
struct Piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

struct Reduction {
  std::vector<View> inputs;  // in rank order
  View output;
};

// What a collective moves on this rank. All-reduce and reduce-scatter: slices to their owners, a sum in rank
// order, and for the all-reduce the sums back to all; so the bits are those of one reduction in rank order.
struct Moves {
  std::vector<Piece> sends, receives;  // one per rank of the group
  std::optional<Reduction> reduction;  // when all has been received
  std::vector<Piece> results;          // then: this rank's goes to all, the others come from their owners
  std::vector<std::pair<View, const std::byte*>> unpack;  // at the end, where memory is strided
  std::vector<Staging::Buffer> buffers;
};
// From the copies in staging memory to where they belong.
void unpack(const Moves& moves, DType dtype);

class Collective : public Task {
 public:
  Collective(std::shared_ptr<const Group> group, std::uint64_t sequence, Call call, Moves moves);
  // A piece of a long operation: its memory is taken when it begins.
  Collective(std::shared_ptr<const Group> group, std::uint64_t sequence, Call call,
             std::function<Moves()> moves);

  void begin(Engine& engine) override;
  void received(Engine& engine, Part part, int peer, std::size_t bytes) override;
  void sent(Engine& engine, Part part, int peer) override;
  void complete(Engine& engine) override;
  void look(std::chrono::steady_clock::time_point now) override;
  bool is_piece() const override { return is_piece_; }
  std::string describe() const override;
  const char* call_name() const override { return local::name_of(call_.kind); }

  // After a split: this rank's new group; null where it joins none, or is alone.
  std::shared_ptr<const Group> new_group() const { return new_group_; }

 private:
  void take_call(Engine& engine, int peer, std::size_t bytes);
  void take_data(Engine& engine);
  void receive_result(Engine& engine, int peer);
  void split(Engine& engine);
  [[noreturn]] void fail_mismatch() const;
  Piece& own(std::vector<Piece>& pieces) const { return pieces[static_cast<std::size_t>(group_->rank)]; }

  const Call call_;
  Moves moves_;
  const bool is_piece_;
  std::function<Moves()> make_moves_;
  std::vector<Call> calls_;  // of all ranks, as they come
  std::vector<bool> here_;   // whose have come
  // Since when a call is known to differ. The report waits a little for the others: they tell which is odd.
  std::optional<std::chrono::steady_clock::time_point> odd_;
  std::size_t message_bytes_;
  Staging::Buffer incoming_, outgoing_;  // announcements, one per rank
  int missing_;                          // calls or data that have not come
  bool reduced_ = false;
  std::vector<bool> sending_;  // to whom data is under way
  std::shared_ptr<const Group> new_group_;
};

// One message of a send_receive: either side of it.
class MessageTask : public Task {
 public:
  MessageTask(std::shared_ptr<const Group> group, std::uint64_t sequence, int peer, Call call, Piece piece,
              Staging::Buffer packed);

  void begin(Engine& engine) override;
  void received(Engine& engine, Part part, int peer, std::size_t bytes) override;
  void sent(Engine& engine, Part part, int peer) override;
  void complete(Engine& engine) override;
  std::string describe() const override;
  const char* call_name() const override { return local::name_of(call_.kind); }

 private:
  bool sends() const { return call_.kind == Kind::kSend; }
  std::string route() const;

  const int peer_;
  const Call call_;
  const Piece piece_;
  Staging::Buffer packed_;  // null where the tensor is contiguous
  Staging::Buffer announcement_;
  std::size_t message_bytes_;
};

}  // namespace weft::mpi
