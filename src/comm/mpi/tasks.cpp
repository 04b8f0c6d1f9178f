#include "comm/mpi/tasks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "comm/reduce.hpp"

namespace weft::mpi {
namespace {

std::vector<int> others(const Group& group) {
  std::vector<int> ranks;
  for (int r = 0; r < group.size(); ++r) {
    if (r != group.rank) ranks.push_back(r);
  }
  return ranks;
}

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

// Whether the data to or from one rank travels with the call.
bool is_inline(const Piece& piece) {
  return piece.bytes <= kInline;
}

// Only what must agree between two ranks of a collective; the rest needs all calls.
bool fits(const Call& mine, int me, const Call& theirs, int them) {
  if (mine.kind != theirs.kind || mine.dtype != theirs.dtype || mine.shape != theirs.shape ||
      mine.op != theirs.op || mine.root != theirs.root) {
    return false;
  }
  return mine.kind != Kind::kAllToAll || (mine.send_rows[index(them)] == theirs.receive_rows[index(me)] &&
                                          mine.receive_rows[index(them)] == theirs.send_rows[index(me)]);
}

[[noreturn]] void fail_differing(const std::string& where, int first, const Call& call, int other,
                                 const Call& other_call) {
  fail("{}: the calls of its ranks differ: rank {} called {}, but rank {} called {}", where, first,
       local::to_string(call), other, local::to_string(other_call));
}

std::string text(const Group& group) {
  return fmt::format("group '{}' (ranks {})", group.name, fmt::join(group.ranks, " "));
}

}  // namespace

void unpack(const Moves& moves, DType dtype) {
  for (const auto& [to, from] : moves.unpack) {
    View packed = to;
    packed.data = const_cast<std::byte*>(from);
    packed.ld = to.columns;
    copy_view(to, packed, bytes_of(dtype));
  }
}

// ---- Collective

Collective::Collective(std::shared_ptr<const Group> group, std::uint64_t sequence, Call call, Moves moves)
    : Task(group, sequence, others(*group)),
      call_(std::move(call)),
      moves_(std::move(moves)),
      is_piece_(false),
      calls_(index(group->size())),
      here_(index(group->size())),
      message_bytes_(longest_announcement(group->size())),
      missing_(group->size() - 1),
      sending_(index(group->size())) {}

Collective::Collective(std::shared_ptr<const Group> group, std::uint64_t sequence, Call call,
                       std::function<Moves()> moves)
    : Task(group, sequence, others(*group)),
      call_(std::move(call)),
      is_piece_(true),
      make_moves_(std::move(moves)),
      calls_(index(group->size())),
      here_(index(group->size())),
      message_bytes_(longest_announcement(group->size())),
      missing_(group->size() - 1),
      sending_(index(group->size())) {}

std::string Collective::describe() const {
  return fmt::format("{}: {} #{}", text(*group_), local::to_string(call_), sequence_);
}

void Collective::begin(Engine& engine) {
  const int n = group_->size();
  if (make_moves_) moves_ = make_moves_();
  moves_.sends.resize(index(n));
  moves_.receives.resize(index(n));
  incoming_ = engine.staging().take(message_bytes_ * index(n));
  outgoing_ = engine.staging().take(message_bytes_ * index(n));
  calls_[index(group_->rank)] = call_;
  here_[index(group_->rank)] = true;
  for (const int peer : others(*group_)) {
    const Piece& piece = moves_.sends[index(peer)];
    std::byte* const message = outgoing_.get() + index(peer) * message_bytes_;
    engine.receive(*this, Part::kCall, peer, incoming_.get() + index(peer) * message_bytes_, message_bytes_);
    const std::size_t with_it = is_inline(piece) ? piece.bytes : 0;
    engine.send(*this, Part::kCall, peer, message, encode(call_, sequence_, piece.data, with_it, message));
    if (is_inline(piece)) continue;
    sending_[index(peer)] = true;
    engine.send(*this, Part::kData, peer, piece.data, piece.bytes);
  }
}

void Collective::received(Engine& engine, Part part, int peer, std::size_t bytes) {
  if (part == Part::kCall) return take_call(engine, peer, bytes);
  if (part == Part::kData) take_data(engine);
}

void Collective::take_call(Engine& engine, int peer, std::size_t bytes) {
  Announcement announcement = decode(incoming_.get() + index(peer) * message_bytes_, bytes);
  if (announcement.sequence != sequence_) {
    fail("{}: rank {} sent its operation #{}", describe(), group_->world_rank(peer), announcement.sequence);
  }
  engine.joined(*this, peer);
  here_[index(peer)] = true;
  const Call& call = calls_[index(peer)] = std::move(announcement.call);
  if (!fits(call_, group_->rank, call, peer)) {
    if (!odd_) odd_ = std::chrono::steady_clock::now();
    return;  // its data has no place here
  }
  const Piece& piece = moves_.receives[index(peer)];
  if (!is_inline(piece)) {
    engine.receive(*this, Part::kData, peer, piece.data, piece.bytes);
    return;
  }
  if (announcement.data_bytes != piece.bytes) {
    fail("{}: rank {} sent {} bytes where {} were expected", describe(), group_->world_rank(peer),
         announcement.data_bytes, piece.bytes);
  }
  if (piece.bytes > 0) std::memcpy(piece.data, announcement.data, piece.bytes);
  take_data(engine);
}

void Collective::look(std::chrono::steady_clock::time_point now) {
  constexpr std::chrono::milliseconds kOthers{200};
  if (!odd_) return;
  const bool all = std::find(here_.begin(), here_.end(), false) == here_.end();
  if (all || now >= *odd_ + kOthers) fail_mismatch();
}

// With all calls: as thread ranks say it. Else the first two that are known and differ.
void Collective::fail_mismatch() const {
  local::Mismatch found;
  if (std::find(here_.begin(), here_.end(), false) == here_.end()) found = local::find_mismatch(calls_);
  for (std::size_t r = 0; !found.found && r < calls_.size(); ++r) {
    for (std::size_t s = 0; !found.found && s < r; ++s) {
      if (!here_[r] || !here_[s]) continue;
      found = {!fits(calls_[r], static_cast<int>(r), calls_[s], static_cast<int>(s)), r, s};
    }
  }
  fail_differing(fmt::format("{}, operation #{}", text(*group_), sequence_), group_->ranks[found.first],
                 calls_[found.first], group_->ranks[found.other], calls_[found.other]);
}

// One more rank's call and data are here.
void Collective::take_data(Engine& engine) {
  if (--missing_ > 0) return;
  if (local::find_mismatch(calls_).found) fail_mismatch();
  if (moves_.reduction) {
    reduce_in_order(call_.dtype, call_.op, moves_.reduction->inputs, {moves_.reduction->output});
  }
  if (moves_.results.empty()) return;
  reduced_ = true;
  for (const int peer : others(*group_)) {
    engine.send(*this, Part::kResult, peer, own(moves_.results).data, own(moves_.results).bytes);
    if (!sending_[index(peer)]) receive_result(engine, peer);
  }
}

// A slice that is still being sent must not be overwritten by its sum.
void Collective::sent(Engine& engine, Part part, int peer) {
  if (part != Part::kData) return;
  sending_[index(peer)] = false;
  if (reduced_) receive_result(engine, peer);
}

void Collective::receive_result(Engine& engine, int peer) {
  const Piece& piece = moves_.results[index(peer)];
  engine.receive(*this, Part::kResult, peer, piece.data, piece.bytes);
}

void Collective::complete(Engine& engine) {
  if (odd_) fail_mismatch();              // all calls are here, and no data
  if (is_piece_) moves_.buffers.clear();  // for the next piece
  unpack(moves_, call_.dtype);
  if (call_.kind == Kind::kSplit) split(engine);
}

// Ranks of one colour form a group, ordered by (key, rank).
void Collective::split(Engine& engine) {
  std::map<int, std::vector<int>> members;
  for (int rank = 0; rank < group_->size(); ++rank) {
    const int color = calls_[index(rank)].color;
    if (color >= 0) members[color].push_back(rank);
  }
  const bool any =
      std::any_of(members.begin(), members.end(), [](const auto& m) { return m.second.size() > 1; });
  if (!any) return;
  std::vector<int> ranks;
  if (call_.color >= 0) ranks = members[call_.color];
  const bool joins = ranks.size() > 1;
  MPI_Comm comm = engine.split(*group_, joins ? call_.color : MPI_UNDEFINED, call_.key);
  if (!joins) return;
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return calls_[index(a)].key < calls_[index(b)].key; });
  auto group = std::make_shared<Group>();
  group->name = call_.split_name;
  group->comm = comm;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == group_->rank) group->rank = static_cast<int>(i);
    group->ranks.push_back(group_->world_rank(ranks[i]));
  }
  int rank = 0, size = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  WEFT_CHECK(rank == group->rank && size == group->size(), "MPI_Comm_split made rank {} of {}, not {} of {}",
             rank, size, group->rank, group->size());
  new_group_ = std::move(group);
}

// ---- MessageTask

MessageTask::MessageTask(std::shared_ptr<const Group> group, std::uint64_t sequence, int peer, Call call,
                         Piece piece, Staging::Buffer packed)
    : Task(std::move(group), sequence, {peer}),
      peer_(peer),
      call_(std::move(call)),
      piece_(piece),
      packed_(std::move(packed)),
      message_bytes_(longest_announcement(0)) {}

std::string MessageTask::route() const {
  const int me = group_->world_rank(group_->rank), peer = group_->world_rank(peer_);
  return fmt::format("#{} from rank {} to rank {}", sequence_, sends() ? me : peer, sends() ? peer : me);
}

std::string MessageTask::describe() const {
  return fmt::format("{}: {} {}", text(*group_), local::to_string(call_), route());
}

void MessageTask::begin(Engine& engine) {
  announcement_ = engine.staging().take(message_bytes_);
  if (!sends()) return engine.receive(*this, Part::kMessageCall, peer_, announcement_.get(), message_bytes_);
  const std::size_t with_it = is_inline(piece_) ? piece_.bytes : 0;
  engine.send(*this, Part::kMessageCall, peer_, announcement_.get(),
              encode(call_, sequence_, piece_.data, with_it, announcement_.get()));
  if (!is_inline(piece_)) engine.send(*this, Part::kMessageData, peer_, piece_.data, piece_.bytes);
}

void MessageTask::received(Engine& engine, Part part, int peer, std::size_t bytes) {
  if (part != Part::kMessageCall) return;
  const Announcement announcement = decode(announcement_.get(), bytes);
  engine.joined(*this, peer);
  if (announcement.sequence != sequence_) {
    fail("{}: rank {} sent its message #{}", describe(), group_->world_rank(peer), announcement.sequence);
  }
  if (local::find_mismatch({announcement.call, call_}).found) {
    fail_differing(fmt::format("{}, message {}", text(*group_), route()), group_->world_rank(group_->rank),
                   call_, group_->world_rank(peer), announcement.call);
  }
  if (!is_inline(piece_)) {
    engine.receive(*this, Part::kMessageData, peer_, piece_.data, piece_.bytes);
  } else if (piece_.bytes > 0) {
    std::memcpy(piece_.data, announcement.data, piece_.bytes);
  }
}

void MessageTask::sent(Engine& engine, Part part, int peer) {
  if (part == Part::kMessageCall) engine.joined(*this, peer);
}

void MessageTask::complete(Engine&) {
  if (sends() || packed_ == nullptr) return;
  const View& to = call_.out[0];
  View packed = to;
  packed.data = packed_.get();
  packed.ld = to.columns;
  copy_view(to, packed, bytes_of(call_.dtype));
}

}  // namespace weft::mpi
