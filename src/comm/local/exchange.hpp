// Exchange: one operation of a group (or one message between two ranks) while it collects its participants,
// and the work that is done once all have come.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/view.hpp"

namespace weft::local {

class Group;

enum class Kind {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSend,
  kReceive,
  kBarrier,
  kSplit
};
const char* name_of(Kind kind);

// One participant's side: its signature, and where its memory lies.
struct Call {
  Kind kind;
  DType dtype = DType::kF32;
  Shape shape;  // of x, shard, or message; of one row for all_to_all
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::vector<std::int64_t> send_rows, receive_rows;
  int color = 0, key = 0;
  std::string split_name;

  std::vector<View> in, out;  // one per rank where the operation has one piece per rank
  std::uint64_t bytes_sent = 0;
};
// "all_reduce(F32 [4, 8], sum)"
std::string to_string(const Call& call);

enum class Stage { kOpen, kRunning, kDone, kFailed };

struct Exchange {
  Exchange(std::uint64_t number, const std::vector<int>& ranks)
      : sequence(number),
        participants(ranks),
        calls(ranks.size()),
        joined(ranks.size()),
        missing(ranks.size()) {}

  const std::uint64_t sequence;
  const std::vector<int> participants;  // ranks of the group; {sender, receiver} for a message
  std::vector<Call> calls;              // one per participant; only read once all have joined
  std::vector<bool> joined;
  std::size_t missing;
  bool withdrawn = false;  // a participant has left: must never run
  Stage stage = Stage::kOpen;
  std::chrono::steady_clock::time_point due{};    // not done before, by the link model
  std::chrono::steady_clock::time_point ended{};  // when it was done, the link model left aside
  // What a split has made: each rank's new group (null where it joins none) and its rank there.
  std::vector<std::pair<std::shared_ptr<Group>, int>> split;
};

// The first participant whose call does not fit, and the one it differs from.
struct Mismatch {
  bool found = false;
  std::size_t first = 0, other = 0;
};
Mismatch find_mismatch(const std::vector<Call>& calls);

// Moves the data of matching calls. kSplit and kBarrier move none.
void execute(const std::vector<Call>& calls);

}  // namespace weft::local
