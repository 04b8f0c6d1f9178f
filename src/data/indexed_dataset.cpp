#include "data/indexed_dataset.hpp"

#include <cstring>
#include <limits>
#include <memory>

#include "core/check.hpp"

namespace weft {
namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::size_t kHeaderBytes = 34;
constexpr std::size_t kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26;

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class Stored>
void widen(const std::byte* from, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i)  // NOLINTNEXTLINE(bugprone-signed-char-misuse): numbers
    out[i] = static_cast<std::int32_t>(load<Stored>(from + i * sizeof(Stored)));
}

template <class Stored>
void narrow(std::span<const std::int32_t> tokens, std::byte* to) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto value = static_cast<Stored>(tokens[i]);
    std::memcpy(to + i * sizeof(Stored), &value, sizeof(Stored));
  }
}

bool known(std::uint8_t code) {
  return (code >= 1 && code <= 5) || code == 8;
}

std::pair<std::int64_t, std::int64_t> id_range(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return {0, 1 << 8};
    case TokenType::kI8:
      return {-(1 << 7), 1 << 7};
    case TokenType::kI16:
      return {-(1 << 15), 1 << 15};
    case TokenType::kU16:
      return {0, 1 << 16};
    case TokenType::kI32:
    case TokenType::kI64:
      break;
  }
  return {std::numeric_limits<std::int32_t>::min(), std::int64_t{1} << 31};
}

std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    const auto c = std::to_integer<unsigned>(b);
    text += c >= 0x20 && c < 0x7f ? std::string(1, static_cast<char>(c)) : fmt::format("\\x{:02x}", c);
  }
  return text;
}

}  // namespace

std::size_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  return 0;
}

std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "u8";
    case TokenType::kI8:
      return "i8";
    case TokenType::kI16:
      return "i16";
    case TokenType::kU16:
      return "u16";
    case TokenType::kI32:
      return "i32";
    case TokenType::kI64:
      return "i64";
  }
  return "?";
}

TokenType token_type_for(std::int64_t vocabulary) {
  return vocabulary <= (1 << 16) ? TokenType::kU16 : TokenType::kI32;
}

std::filesystem::path bin_path(const std::filesystem::path& prefix) {
  return prefix.string() + ".bin";
}
std::filesystem::path idx_path(const std::filesystem::path& prefix) {
  return prefix.string() + ".idx";
}

IndexedDataset::IndexedDataset(const std::filesystem::path& prefix)
    : prefix_(prefix), idx_(idx_path(prefix)), bin_(bin_path(prefix)) {
  check_header();
  const std::byte* at = idx_.bytes().data();
  type_ = static_cast<TokenType>(load<std::uint8_t>(at + kTypeAt));
  const auto sequences = static_cast<std::size_t>(load<std::uint64_t>(at + kSequencesAt));
  const auto documents = static_cast<std::size_t>(load<std::uint64_t>(at + kDocumentsAt));
  lengths_.resize(sequences);
  starts_.resize(sequences);
  document_table_.resize(documents);
  at += kHeaderBytes;
  const auto take = [&at](auto& table) {
    const std::size_t bytes = table.size() * sizeof(table[0]);
    if (bytes > 0) std::memcpy(table.data(), at, bytes);
    at += bytes;
  };
  take(lengths_);
  take(starts_);
  take(document_table_);
  check_tables();
  const auto size = static_cast<std::int64_t>(bytes_of(type_));
  for (auto& start : starts_) start /= size;
}

void IndexedDataset::check_header() const {
  const auto idx = idx_.bytes();
  const std::string file = idx_.path().string();
  if (idx.size() < kHeaderBytes)
    config_fail("{}: header: expected {} bytes, found a file of {}", file, kHeaderBytes, idx.size());
  if (idx_.text().substr(0, kMagic.size()) != kMagic)
    config_fail("{}: magic: expected \"MMIDIDX\\x00\\x00\", found \"{}\"", file,
                printable(idx.first(kMagic.size())));
  const auto version = load<std::uint64_t>(idx.data() + kMagic.size());
  if (version != 1) config_fail("{}: version: expected 1, found {}", file, version);
  const auto code = load<std::uint8_t>(idx.data() + kTypeAt);
  if (!known(code))
    config_fail(
        "{}: dtype code: expected a whole-number type (1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16), found {}",
        file, code);
  const auto sequences = load<std::uint64_t>(idx.data() + kSequencesAt);
  const auto documents = load<std::uint64_t>(idx.data() + kDocumentsAt);
  // Bounds first: the product below must not overflow, and nothing is allocated for a count the file cannot
  // hold.
  const std::uint64_t room = idx.size() - kHeaderBytes;
  if (sequences > room / 12)
    config_fail("{}: sequence count: found {}, but the {} bytes after the header hold at most {}", file,
                sequences, room, room / 12);
  if (documents > room / 8)
    config_fail("{}: document count: found {}, but the {} bytes after the header hold at most {}", file,
                documents, room, room / 8);
  const std::uint64_t expected = kHeaderBytes + 12 * sequences + 8 * documents;
  if (idx.size() != expected)
    config_fail("{}: size: expected {} bytes for sequence count {} and document count {}, found {}", file,
                expected, sequences, documents, idx.size());
}

void IndexedDataset::check_tables() const {
  const std::string file = idx_.path().string();
  const auto size = static_cast<std::int64_t>(bytes_of(type_));
  std::int64_t end = 0;
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    if (lengths_[i] < 0)
      config_fail("{}: length of sequence {}: expected 0 or more, found {}", file, i, lengths_[i]);
    if (starts_[i] != end)
      config_fail("{}: byte offset of sequence {}: expected {}, found {}", file, i, end, starts_[i]);
    end += size * lengths_[i];
  }
  if (const auto found = static_cast<std::int64_t>(bin_.bytes().size()); found != end)
    config_fail("{}: size: expected {} bytes ({} tokens of {} in {}), found {}", bin_.path().string(), end,
                end / size, name_of(type_), file, found);
  if (document_table_.empty()) config_fail("{}: document count: expected 1 or more entries, found 0", file);
  if (document_table_.front() != 0)
    config_fail("{}: document table: expected to start at 0, found {}", file, document_table_.front());
  for (std::size_t i = 1; i < document_table_.size(); ++i)
    if (document_table_[i] < document_table_[i - 1])
      config_fail("{}: document table: expected entry {} to be {} or more, found {}", file, i,
                  document_table_[i - 1], document_table_[i]);
  if (const auto last = document_table_.back(); last != static_cast<std::int64_t>(lengths_.size()))
    config_fail("{}: document table: expected to end at the sequence count {}, found {}", file,
                lengths_.size(), last);
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const {
  const auto s = static_cast<std::size_t>(sequence);
  WEFT_CHECK(s < lengths_.size() && offset >= 0 && offset + std::ssize(out) <= lengths_[s],
             "tokens [{}, {}) of sequence {} of {}", offset, offset + std::ssize(out), sequence, name());
  const std::byte* from =
      bin_.bytes().data() + static_cast<std::size_t>(starts_[s] + offset) * bytes_of(type_);
  switch (type_) {
    case TokenType::kU8:
      return widen<std::uint8_t>(from, out);
    case TokenType::kI8:
      return widen<std::int8_t>(from, out);
    case TokenType::kI16:
      return widen<std::int16_t>(from, out);
    case TokenType::kU16:
      return widen<std::uint16_t>(from, out);
    case TokenType::kI32:
      return widen<std::int32_t>(from, out);
    case TokenType::kI64:
      break;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto id = load<std::int64_t>(from + i * 8);
    if (id != static_cast<std::int32_t>(id))
      fail("{}: sequence {}: id {} at position {} does not fit 32 bits", name(), sequence, id,
           offset + static_cast<std::int64_t>(i));
    out[i] = static_cast<std::int32_t>(id);
  }
}

IndexedDatasetWriter::IndexedDatasetWriter(const std::filesystem::path& prefix, std::int64_t vocabulary)
    : IndexedDatasetWriter(prefix, token_type_for(vocabulary)) {
  lowest_ = 0;
  vocabulary_ = vocabulary;
}

IndexedDatasetWriter::IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type)
    : prefix_(prefix),
      type_(type),
      lowest_(id_range(type).first),
      vocabulary_(id_range(type).second),
      bin_(bin_path(prefix)),
      idx_(idx_path(prefix)) {}

void IndexedDatasetWriter::add_sequence(std::span<const std::int32_t> tokens) {
  for (const std::int32_t id : tokens)
    if (id < lowest_ || id >= vocabulary_)
      fail("{}: sequence {}: id {} is outside [{}, {})", bin_path(prefix_).string(), sequences(), id, lowest_,
           vocabulary_);
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    fail("{}: sequence {}: {} tokens, the format holds at most {} in one sequence",
         bin_path(prefix_).string(), sequences(), tokens.size(), std::numeric_limits<std::int32_t>::max());
  scratch_.resize(tokens.size() * bytes_of(type_));
  switch (bytes_of(type_)) {
    case 1:
      narrow<std::int8_t>(tokens, scratch_.data());
      break;
    case 2:
      narrow<std::int16_t>(tokens, scratch_.data());
      break;
    case 4:
      narrow<std::int32_t>(tokens, scratch_.data());
      break;
    default:
      narrow<std::int64_t>(tokens, scratch_.data());
      break;
  }
  bin_.write(scratch_.data(), scratch_.size());
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
  tokens_ += static_cast<std::int64_t>(tokens.size());
}

void IndexedDatasetWriter::end_document() {
  document_table_.push_back(sequences());
}

void IndexedDatasetWriter::add_index(const IndexedDataset& other) {
  if (other.type() != type_)
    config_fail("{}: tokens are {}, those already merged are {}", other.name(), name_of(other.type()),
                name_of(type_));
  const std::int64_t before = sequences();
  const auto lengths = other.lengths();
  lengths_.insert(lengths_.end(), lengths.begin(), lengths.end());
  for (const std::int64_t first : other.document_table().subspan(1))
    document_table_.push_back(before + first);
  bin_.write(other.bin_bytes().data(), other.bin_bytes().size());
  tokens_ += other.tokens();
}

void IndexedDatasetWriter::commit() {
  WEFT_CHECK(document_table_.back() == sequences(), "the last document of {} was not ended",
             prefix_.string());
  const auto write = [this](auto value) { idx_.write(&value, sizeof(value)); };
  idx_.write(kMagic.data(), kMagic.size());
  write(std::uint64_t{1});
  write(static_cast<std::uint8_t>(type_));
  write(static_cast<std::uint64_t>(lengths_.size()));
  write(static_cast<std::uint64_t>(document_table_.size()));
  idx_.write_values(std::span<const std::int32_t>(lengths_));
  std::int64_t start = 0;
  for (const std::int32_t length : lengths_) {
    write(start);
    start += length * static_cast<std::int64_t>(bytes_of(type_));
  }
  idx_.write_values(std::span<const std::int64_t>(document_table_));
  bin_.finish();
  idx_.finish();
  // The old index goes first: a reader never sees an index beside tokens it does not belong to.
  std::error_code ignored;
  std::filesystem::remove(idx_path(prefix_), ignored);
  bin_.publish();
  idx_.publish();
}

void merge_datasets(std::span<const std::filesystem::path> prefixes,
                    const std::filesystem::path& out_prefix) {
  if (prefixes.empty()) config_fail("no dataset to merge was named");
  std::vector<std::unique_ptr<IndexedDataset>> parts;
  for (const auto& prefix : prefixes) parts.push_back(std::make_unique<IndexedDataset>(prefix));
  IndexedDatasetWriter writer(out_prefix, parts.front()->type());
  for (const auto& part : parts) writer.add_index(*part);
  writer.commit();
}

}  // namespace weft
