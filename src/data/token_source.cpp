#include "data/token_source.hpp"

#include <algorithm>
#include <utility>

#include "core/check.hpp"

namespace weft {

MemoryTokens::MemoryTokens(std::vector<std::int32_t> tokens, std::vector<std::int32_t> lengths,
                           std::string name)
    : tokens_(std::move(tokens)), lengths_(std::move(lengths)), name_(std::move(name)) {
  starts_.reserve(lengths_.size());
  std::int64_t start = 0;
  for (const std::int32_t length : lengths_) {
    starts_.push_back(start);
    start += length;
  }
  WEFT_CHECK(start == static_cast<std::int64_t>(tokens_.size()),
             "document lengths add up to {}, there are {} tokens", start, tokens_.size());
}

void MemoryTokens::read(std::int64_t document, std::int64_t offset, std::span<std::int32_t> out) const {
  const auto d = static_cast<std::size_t>(document);
  WEFT_CHECK(d < lengths_.size() && offset >= 0 && offset + std::ssize(out) <= lengths_[d],
             "tokens [{}, {}) of document {} of {}", offset, offset + std::ssize(out), document, name_);
  std::copy_n(tokens_.begin() + starts_[d] + offset, out.size(), out.begin());
}

TokenRange::TokenRange(std::shared_ptr<const TokenSource> source, std::int64_t begin, std::int64_t end)
    : source_(std::move(source)), begin_(begin), end_(end) {
  WEFT_CHECK(begin >= 0 && begin <= end, "token range [{}, {})", begin, end);
  const auto lengths = source_->lengths();
  std::int64_t start = 0;
  for (std::size_t d = 0; d < lengths.size() && start < end; start += lengths[d++]) {
    const std::int64_t from = std::max(start, begin);
    const std::int64_t to = std::min<std::int64_t>(start + lengths[d], end);
    if (from >= to) continue;
    if (lengths_.empty()) {
      first_document_ = static_cast<std::int64_t>(d);
      first_offset_ = from - start;
    }
    // Empty documents in the middle stay, so that numbers run in step with the source's.
    lengths_.resize(d - static_cast<std::size_t>(first_document_), 0);
    lengths_.push_back(static_cast<std::int32_t>(to - from));
  }
}

void TokenRange::read(std::int64_t document, std::int64_t offset, std::span<std::int32_t> out) const {
  WEFT_CHECK(document >= 0 && document < documents() && offset >= 0 &&
                 offset + std::ssize(out) <= lengths_[static_cast<std::size_t>(document)],
             "tokens [{}, {}) of document {} of {}", offset, offset + std::ssize(out), document, name());
  source_->read(first_document_ + document, offset + (document == 0 ? first_offset_ : 0), out);
}

std::string TokenRange::name() const {
  return fmt::format("{} (tokens {} to {})", source_->name(), begin_, end_);
}

std::vector<std::int32_t> read_all(const TokenSource& source) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(source.tokens()));
  std::span<std::int32_t> rest(tokens);
  for (std::int64_t d = 0; d < source.documents(); ++d) {
    const auto length = static_cast<std::size_t>(source.lengths()[static_cast<std::size_t>(d)]);
    source.read(d, 0, rest.first(length));
    rest = rest.subspan(length);
  }
  return tokens;
}

}  // namespace weft
