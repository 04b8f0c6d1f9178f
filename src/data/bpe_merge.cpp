#include "data/bpe_merge.hpp"

#include <bit>
#include <limits>

namespace weft {
namespace {

// Up to this length scanning for the best pair beats a queue.
constexpr std::size_t kShortWord = 48;
constexpr PairTable::Merge kNever{std::numeric_limits<std::int32_t>::max(), -1};

}  // namespace

PairTable::PairTable(std::size_t expected) {
  const std::size_t size = std::bit_ceil(2 * expected + 8);
  slots_.assign(size, Slot{kEmpty, kNever});
  mask_ = size - 1;
}

void PairTable::insert(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t slot = hash(key);
  while (slots_[slot].key != kEmpty) {
    if (slots_[slot].key == key) return;
    slot = (slot + 1) & mask_;
  }
  slots_[slot] = {key, merge};
}

void WordMerger::merge(const PairTable& table, std::vector<std::int32_t>& word) {
  if (word.size() < 2) return;
  word.size() <= kShortWord ? merge_short(table, word) : merge_long(table, word);
}

void WordMerger::merge_short(const PairTable& table, std::vector<std::int32_t>& word) {
  const auto look_up = [&](std::size_t i) {
    const PairTable::Merge* merge = table.find(word[i], word[i + 1]);
    return merge == nullptr ? kNever : *merge;
  };
  pairs_.clear();
  for (std::size_t i = 0; i + 1 < word.size(); ++i) pairs_.push_back(look_up(i));
  while (true) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < pairs_.size(); ++i)
      if (pairs_[i].rank < pairs_[best].rank) best = i;
    if (pairs_.empty() || pairs_[best].result < 0) return;
    word[best] = pairs_[best].result;
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) pairs_[best - 1] = look_up(best - 1);
    if (best < pairs_.size()) pairs_[best] = look_up(best);
  }
}

void WordMerger::merge_long(const PairTable& table, std::vector<std::int32_t>& word) {
  const auto count = static_cast<std::int32_t>(word.size());
  links_.clear();
  for (std::int32_t i = 0; i < count; ++i)
    links_.push_back({word[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  const auto at = [this](std::int32_t i) -> Link& { return links_[static_cast<std::size_t>(i)]; };
  const auto offer = [&](std::int32_t left) {
    if (left < 0 || at(left).next < 0) return;
    const std::int32_t a = at(left).id, b = at(at(left).next).id;
    if (const auto* merge = table.find(a, b)) queue_.push({merge->rank, left, a, b, merge->result});
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) offer(i);
  while (!queue_.empty()) {
    const Candidate best = queue_.top();
    queue_.pop();
    Link& left = at(best.left);
    // Stale when either side has been merged since (a removed link has id -1).
    if (left.id != best.left_id || left.next < 0 || at(left.next).id != best.right_id) continue;
    Link& right = at(left.next);
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = best.left;
    offer(left.previous);
    offer(best.left);
  }
  word.clear();
  for (std::int32_t i = 0; i >= 0; i = at(i).next) word.push_back(at(i).id);
}

}  // namespace weft
