// The inner loop of byte-pair encoding: applying ranked merges to one word.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace weft {

// (left id, right id) -> (rank, resulting id), open addressing.
class PairTable {
 public:
  struct Merge {
    std::int32_t rank;
    std::int32_t result;
  };

  explicit PairTable(std::size_t expected);
  // The first of two equal pairs stays.
  void insert(std::int32_t left, std::int32_t right, Merge merge);
  // Null: this pair is never merged.
  const Merge* find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t slot = hash(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return &slots_[slot].merge;
      if (slots_[slot].key == kEmpty) return nullptr;
    }
  }

 private:
  struct Slot {
    std::uint64_t key;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
           static_cast<std::uint32_t>(right);
  }
  std::size_t hash(std::uint64_t key) const { return ((key * 0x9E3779B97F4A7C15u) >> 20) & mask_; }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
};

// Merges adjacent ids of `word` in place, always the pair of lowest rank, the leftmost first, until none is
// left.
class WordMerger {
 public:
  void merge(const PairTable& table, std::vector<std::int32_t>& word);

 private:
  void merge_short(const PairTable& table, std::vector<std::int32_t>& word);
  void merge_long(const PairTable& table, std::vector<std::int32_t>& word);

  struct Candidate {
    std::int32_t rank;
    std::int32_t left;  // index into links_
    std::int32_t left_id, right_id, result;
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;  // the queue's top is the largest
    }
  };
  struct Link {
    std::int32_t id, previous, next;
  };
  std::vector<PairTable::Merge> pairs_;
  std::vector<Link> links_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace weft
