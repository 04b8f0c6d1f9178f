#include "train/nearest.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "core/check.hpp"

namespace weft {
namespace {

// Letters inserted, left out, replaced, or two neighbours swapped.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::vector<std::string_view> words_of(std::string_view name) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('-', begin), name.size());
    if (end > begin) words.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// Each word of `typed` against its nearest unused word of `known`.
double edits_by_word(std::string_view typed, std::string_view known) {
  std::vector<std::string_view> left = words_of(known);
  double sum = 0.5;  // dearer than a plain equal name
  for (const std::string_view word : words_of(typed)) {
    auto best = left.end();
    std::size_t fewest = word.size();  // leaving a word out costs its length
    for (auto it = left.begin(); it != left.end(); ++it) {
      const std::size_t count = edits(word, *it);
      if (count < fewest) {
        fewest = count;
        best = it;
      }
    }
    sum += static_cast<double>(fewest);
    if (best != left.end()) left.erase(best);
  }
  return sum + 0.4 * static_cast<double>(left.size());
}

}  // namespace

double name_distance(std::string_view typed, std::string_view known) {
  return std::min(static_cast<double>(edits(typed, known)), edits_by_word(typed, known));
}

std::string nearest_name(std::string_view typed, std::span<const std::string> known) {
  std::string best;
  double least = std::max(2.0, 0.4 * static_cast<double>(typed.size()));  // beyond this a guess does not help
  for (const std::string& name : known) {
    const double distance = name_distance(typed, name);
    if (distance >= static_cast<double>(typed.size())) continue;  // no letter in common
    if (distance < least || (distance == least && best.empty())) {
      least = distance;
      best = name;
    }
  }
  return best;
}

std::string did_you_mean(const std::string& name) {
  return name.empty() ? "" : fmt::format("; did you mean {}?", name);
}

}  // namespace weft
