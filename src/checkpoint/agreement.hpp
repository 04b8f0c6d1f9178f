// Agreement: work that every rank of a group must finish, or else none goes on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace weft {

class Agreement {
 public:
  // `who` names this rank in messages: "rank 3 (dp 1, tp 1)".
  Agreement(Lane& lane, Communicator& group, std::string who)
      : lane_(lane), group_(group), who_(std::move(who)) {}

  // Runs `work` here and returns when all ranks have run theirs. If any of them threw, all leave with the
  // name and text of the first that did: that rank by an Error, the others by Aborted, so that it is the one
  // that reports.
  void all(const std::function<void()>& work);
  // all() has thrown, and no rank is at work.
  bool failed() const { return failed_; }
  // The texts of all ranks, in rank order.
  std::vector<std::string> gather(const std::string& text);

 private:
  Lane& lane_;
  Communicator& group_;
  std::string who_;
  bool failed_ = false;
};

}  // namespace weft
