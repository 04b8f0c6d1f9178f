// Text files as documents, and their translation into .bin/.idx.
//
// `.jsonl`: each line is a JSON object whose "text" is a document (it may be empty); lines of white space are
// skipped. Anything else is plain text: documents end at blank lines (nothing but spaces, tabs or a carriage
// return). A document is its lines with the line ends between them; the last line's end is not part of it,
// blank lines make no document. A text without blank lines is thus one document. Bytes that are not UTF-8
// stay as they are (in JSON they are an error: JSON is UTF-8).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "data/files.hpp"
#include "data/token_source.hpp"
#include "data/tokenizer.hpp"

namespace weft {

bool is_jsonl(const std::filesystem::path& path);

// A document as it stands in its file: the text itself, or the line of JSON.
struct RawDocument {
  std::string bytes;
  std::int64_t line = 0;  // of its first line, from 1
};

// Reads the documents of one file in order. Memory: one document.
class DocumentReader {
 public:
  explicit DocumentReader(const std::filesystem::path& path);
  // False at the end.
  bool next(RawDocument& out);
  // The document's text. A ConfigError names file and line when a JSON line has no "text". Any thread.
  std::string text_of(RawDocument raw) const;

 private:
  InputFile file_;
  bool jsonl_;
  std::int64_t line_ = 0;
  std::string buffer_;
};

struct BuildOptions {
  bool append_eod = false;  // the tokenizer's end_of_document after each document that is not empty
  int workers = 1;          // threads that tokenize; any number gives the same files
};

struct BuildReport {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t text_bytes = 0;
};

// Writes OUT_PREFIX.bin/.idx: one sequence per document, in the order of the inputs. Memory is bounded by the
// longest document and a few megabytes per worker; the files appear when all went well.
BuildReport build_dataset(std::span<const std::filesystem::path> inputs, const Tokenizer& tokenizer,
                          const std::filesystem::path& out_prefix, const BuildOptions& options = {});

// The documents of text files as tokens in memory.
MemoryTokens tokenize_files(std::span<const std::filesystem::path> inputs, const Tokenizer& tokenizer,
                            const BuildOptions& options = {});

}  // namespace weft
