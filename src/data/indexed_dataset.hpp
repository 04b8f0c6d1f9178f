// Megatron's indexed dataset: PREFIX.bin holds raw tokens, PREFIX.idx says how they form sequences and
// documents.
//
// PREFIX.idx, little-endian: "MMIDIDX\0\0", u64 version 1, u8 type code, u64 sequences, u64 document entries,
// then i32 length of each sequence (tokens), i64 its byte offset in .bin, i64 document table (first sequence
// of each document, from 0, ended by the number of sequences).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/files.hpp"
#include "data/token_source.hpp"

namespace weft {

// Megatron's code of the token type in .idx.
enum class TokenType : std::uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

std::size_t bytes_of(TokenType type);
std::string_view name_of(TokenType type);
// The narrowest type that is written for a vocabulary: u16 up to 65536 ids, else i32. (Megatron itself
// changes to i32 from 65500 on; both read either.)
TokenType token_type_for(std::int64_t vocabulary);

std::filesystem::path bin_path(const std::filesystem::path& prefix);
std::filesystem::path idx_path(const std::filesystem::path& prefix);

// A pair of files mapped for reading. A "document" of the TokenSource is a sequence of the file, as in
// Megatron's GPT data, where most documents are one sequence. Opening checks every field of the index against
// the others and against the size of .bin; each fault is a ConfigError that names file, field, expected and
// found.
class IndexedDataset final : public TokenSource {
 public:
  explicit IndexedDataset(const std::filesystem::path& prefix);

  std::span<const std::int32_t> lengths() const override { return lengths_; }
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const override;
  std::string name() const override { return bin_path(prefix_).string(); }

  const std::filesystem::path& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  // First sequence of each document, then the number of sequences.
  std::span<const std::int64_t> document_table() const { return document_table_; }
  std::span<const std::byte> bin_bytes() const { return bin_.bytes(); }

 private:
  void check_header() const;
  void check_tables() const;

  std::filesystem::path prefix_;
  MappedFile idx_, bin_;
  TokenType type_ = TokenType::kI32;
  // Copies: the tables of the file are not aligned.
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> starts_;  // in tokens
  std::vector<std::int64_t> document_table_;
};

// Writes a pair of files token by token; memory grows only with the number of sequences. They appear under
// their names at commit(); before that, or after an error, nothing of an older pair is touched.
class IndexedDatasetWriter {
 public:
  // vocabulary bounds the ids that may be written and chooses the type.
  IndexedDatasetWriter(const std::filesystem::path& prefix, std::int64_t vocabulary);
  // Any id that fits the type.
  IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type);

  // One sequence (empty is allowed). An id outside the vocabulary is an Error naming file, sequence, id and
  // vocabulary.
  void add_sequence(std::span<const std::int32_t> tokens);
  // Ends a document: the sequences added since the last call.
  void end_document();
  void add_document(std::span<const std::int32_t> tokens) {
    add_sequence(tokens);
    end_document();
  }
  // Appends a whole dataset. A ConfigError when the token types differ.
  void add_index(const IndexedDataset& other);

  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t documents() const { return static_cast<std::int64_t>(document_table_.size()) - 1; }
  std::int64_t tokens() const { return tokens_; }
  void commit();

 private:
  std::filesystem::path prefix_;
  TokenType type_;
  std::int64_t lowest_, vocabulary_;  // ids in [lowest, vocabulary) may be written
  OutputFile bin_, idx_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> document_table_{0};
  std::vector<std::byte> scratch_;
  std::int64_t tokens_ = 0;
};

// Writes the datasets one after the other into one.
void merge_datasets(std::span<const std::filesystem::path> prefixes, const std::filesystem::path& out_prefix);

}  // namespace weft
