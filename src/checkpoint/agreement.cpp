#include "checkpoint/agreement.hpp"

#include <algorithm>

#include "core/check.hpp"

namespace weft {

void Agreement::all(const std::function<void()>& work) {
  std::string error;
  try {
    work();
  } catch (const Aborted&) {
    throw;
  } catch (const std::exception& e) {
    error = fmt::format("{}: {}", who_, e.what());
  }
  const std::vector<std::string> errors = gather(error);
  const auto first =
      std::find_if(errors.begin(), errors.end(), [](const auto& text) { return !text.empty(); });
  if (first == errors.end()) return;
  failed_ = true;
  if (first - errors.begin() == group_.rank()) throw Error(*first);
  throw Aborted(*first);
}

std::vector<std::string> Agreement::gather(const std::string& text) {
  const auto size = static_cast<std::size_t>(group_.size());
  const std::int64_t ranks = group_.size();
  auto length = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> lengths(size);
  group_
      .all_gather_into(lane_, Tensor::borrow(&length, DType::kI64, {1}),
                       Tensor::borrow(lengths.data(), DType::kI64, {ranks}))
      .wait(lane_);
  std::vector<std::string> texts(size);
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) return texts;
  std::string mine = text;
  mine.resize(static_cast<std::size_t>(longest));
  std::string all(mine.size() * size, '\0');
  group_
      .all_gather_into(lane_, Tensor::borrow(mine.data(), DType::kU8, {longest}),
                       Tensor::borrow(all.data(), DType::kU8, {ranks * longest}))
      .wait(lane_);
  for (std::size_t r = 0; r < size; ++r) {
    texts[r] = all.substr(r * mine.size(), static_cast<std::size_t>(lengths[r]));
  }
  return texts;
}

}  // namespace weft
