// TokenSource: documents of tokens, by number. What the sample order is made over and read from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // Length in tokens of each document; 0 is allowed.
  virtual std::span<const std::int32_t> lengths() const = 0;
  // Tokens [offset, offset + out.size()) of a document; the range must lie inside it. Any number of threads.
  virtual void read(std::int64_t document, std::int64_t offset, std::span<std::int32_t> out) const = 0;
  // Where the tokens come from, for messages.
  virtual std::string name() const = 0;

  std::int64_t documents() const { return static_cast<std::int64_t>(lengths().size()); }
  std::int64_t tokens() const {
    std::int64_t sum = 0;
    for (const std::int32_t length : lengths()) sum += length;
    return sum;
  }
};

// Tokens held in memory.
class MemoryTokens final : public TokenSource {
 public:
  // lengths must add up to the number of tokens.
  MemoryTokens(std::vector<std::int32_t> tokens, std::vector<std::int32_t> lengths, std::string name);

  std::span<const std::int32_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, std::int64_t offset, std::span<std::int32_t> out) const override;
  std::string name() const override { return name_; }
  // All documents, one after the other.
  std::span<const std::int32_t> all() const { return tokens_; }

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> starts_;
  std::string name_;
};

// Tokens [begin, end) of the concatenation of another source's documents, with the document borders that lie
// inside: how one long text is cut into training, validation and test parts.
class TokenRange final : public TokenSource {
 public:
  TokenRange(std::shared_ptr<const TokenSource> source, std::int64_t begin, std::int64_t end);

  std::span<const std::int32_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, std::int64_t offset, std::span<std::int32_t> out) const override;
  std::string name() const override;

 private:
  std::shared_ptr<const TokenSource> source_;
  std::int64_t begin_, end_;
  std::int64_t first_document_ = 0;
  std::int64_t first_offset_ = 0;
  std::vector<std::int32_t> lengths_;
};

// All tokens of a source, one document after the other.
std::vector<std::int32_t> read_all(const TokenSource& source);

}  // namespace weft
