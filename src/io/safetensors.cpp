#include "io/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "io/atomic_file.hpp"

namespace weft {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian and read in place");

constexpr std::size_t kLengthBytes = 8;
// The reference implementation's own limit.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
// Alignment of tensors in files that we write, and of the copy made of a tensor that a file holds unaligned.
constexpr std::size_t kAlignment = 8;

struct FormatType {
  std::string_view name;
  std::size_t bytes;
  std::optional<DType> dtype;  // none: known to the format, but no tensor of ours has it
};

constexpr FormatType kFormatTypes[] = {
    {"F64", 8, DType::kF64}, {"F32", 4, DType::kF32}, {"BF16", 2, DType::kBF16},
    {"F16", 2, DType::kF16}, {"I64", 8, DType::kI64}, {"I32", 4, DType::kI32},
    {"I16", 2, DType::kI16}, {"U16", 2, DType::kU16}, {"I8", 1, DType::kI8},
    {"U8", 1, DType::kU8},   {"U64", 8, {}},          {"U32", 4, {}},
    {"BOOL", 1, {}},         {"F8_E4M3", 1, {}},      {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
};

const FormatType* find_type(std::string_view name) {
  for (const FormatType& type : kFormatTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Names come from the file: a damaged one must not flood a message or the terminal.
std::string in_quotes(const std::string& name) {
  std::string text = "'";
  for (const char c : name.substr(0, 200))
    text += (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) ? '?' : c;
  return text + (name.size() > 200 ? "...'" : "'");
}

struct Record {
  const FormatType* type = nullptr;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0;  // in the data section
};

// Elements times bytes per element; none when the product of the sizes (zeros left out) is 2^63 or more.
std::optional<std::uint64_t> bytes_of_record(const Record& record) {
  std::uint64_t bytes = record.type->bytes;
  bool empty = false;
  for (const std::uint64_t size : record.shape) {
    empty = empty || size == 0;
    if (size > 0 && __builtin_mul_overflow(bytes, size, &bytes)) return {};
  }
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
  return empty ? 0 : bytes;
}

// The header of one file, checked piece by piece. Faults are thrown with the file's name before them.
class HeaderParser {
 public:
  HeaderParser(const std::filesystem::path& path, std::uint64_t data_bytes)
      : path_(path), data_bytes_(data_bytes) {}

  void parse(const char* begin, const char* end);

  std::vector<std::string> names;  // in the order of their bytes
  std::unordered_map<std::string, Record> records;
  std::map<std::string, std::string> metadata;

 private:
  template <class... Args>
  [[noreturn]] void fault(fmt::format_string<Args...> format, Args&&... args) const {
    config_fail("{}: {}", path_.string(), fmt::format(format, std::forward<Args>(args)...));
  }
  Json parse_json(const char* begin, const char* end) const;
  void read_metadata(const Json& value);
  Record read_record(const std::string& name, const Json& value) const;
  void check_layout() const;

  const std::filesystem::path& path_;
  std::uint64_t data_bytes_;
};

Json HeaderParser::parse_json(const char* begin, const char* end) const {
  // A name that occurs twice would silently hide a tensor: the parser keeps the last one.
  std::set<std::string> seen;
  std::string twice;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::key && depth == 1 && !seen.insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  Json header;
  try {
    header = Json::parse(begin, end, watch);
  } catch (const Json::exception& e) {
    fault("damaged safetensors header: not valid JSON: {}", in_quotes(e.what()));
  }
  if (!header.is_object()) fault("damaged safetensors header: a JSON {}, not an object", header.type_name());
  if (!twice.empty()) fault("damaged safetensors header: the name {} occurs twice", in_quotes(twice));
  return header;
}

void HeaderParser::read_metadata(const Json& value) {
  if (!value.is_object()) fault("damaged safetensors header: __metadata__ is no map of strings");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      fault("damaged safetensors header: __metadata__ entry {} is no string", in_quotes(key));
    metadata.emplace(key, text.get<std::string>());
  }
}

Record HeaderParser::read_record(const std::string& name, const Json& value) const {
  const std::string who = in_quotes(name);
  if (!value.is_object()) fault("tensor {}: its header entry is no object", who);
  const auto dtype = value.find("dtype"), shape = value.find("shape"), offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string()) fault("tensor {}: no dtype in its header entry", who);
  if (shape == value.end() || !shape->is_array()) fault("tensor {}: no shape in its header entry", who);
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    fault("tensor {}: data_offsets is not a pair of integers >= 0", who);
  }
  Record record;
  record.type = find_type(dtype->get_ref<const std::string&>());
  if (record.type == nullptr) fault("tensor {}: unknown dtype {}", who, in_quotes(dtype->get<std::string>()));
  for (const Json& size : *shape) {
    if (!size.is_number_unsigned())
      fault("tensor {}: shape {} has a size that is no integer >= 0", who, shape->dump());
    record.shape.push_back(size.get<std::uint64_t>());
  }
  record.begin = (*offsets)[0].get<std::uint64_t>();
  record.end = (*offsets)[1].get<std::uint64_t>();
  if (record.begin > record.end || record.end > data_bytes_) {
    fault("tensor {}: data_offsets [{}, {}] do not lie in the file's {} data bytes (is the file cut short?)",
          who, record.begin, record.end, data_bytes_);
  }
  const std::optional<std::uint64_t> bytes = bytes_of_record(record);
  if (bytes != record.end - record.begin) {
    fault("tensor {}: {} {} needs {} bytes, but data_offsets [{}, {}] hold {}", who, record.type->name,
          shape_text(record.shape), bytes ? std::to_string(*bytes) : "more than 2^63", record.begin,
          record.end, record.end - record.begin);
  }
  return record;
}

// The tensors must lie one behind the other and fill the data section.
void HeaderParser::check_layout() const {
  std::uint64_t position = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Record& record = records.at(names[i]);
    if (record.begin < position) {
      fault("tensor {}: data_offsets [{}, {}] overlap those of {}, which end at {}", in_quotes(names[i]),
            record.begin, record.end, in_quotes(names[i - 1]), position);
    }
    if (record.begin > position) {
      fault("{} bytes before tensor {} (data bytes {} to {}) belong to no tensor", record.begin - position,
            in_quotes(names[i]), position, record.begin);
    }
    position = record.end;
  }
  if (position != data_bytes_) {
    fault("the tensors end at data byte {}, but the file has {} data bytes", position, data_bytes_);
  }
}

void HeaderParser::parse(const char* begin, const char* end) {
  const Json header = parse_json(begin, end);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      read_metadata(value);
      continue;
    }
    records.emplace(name, read_record(name, value));
    names.push_back(name);
  }
  std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    const Record &x = records.at(a), &y = records.at(b);
    return std::tie(x.begin, x.end, a) < std::tie(y.begin, y.end, b);
  });
  check_layout();
}

}  // namespace

struct SafetensorsFile::State {
  std::filesystem::path path;
  std::byte* map = nullptr;
  std::size_t map_bytes = 0;
  const std::byte* data = nullptr;  // the data section
  std::vector<std::string> names;
  std::unordered_map<std::string, Record> records;
  std::map<std::string, std::string> metadata;
  std::mutex mutex;  // guards copies
  std::unordered_map<std::string, std::vector<std::uint64_t>> copies;

  ~State() {
    if (map != nullptr) munmap(map, map_bytes);
  }

  void map_file();
  void read_header();
  // The bytes at an address that suits their type; a file written without padding may need a copy.
  void* aligned(const std::string& name, const Record& record);
};

void SafetensorsFile::State::map_file() {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) config_fail("{}: cannot open for reading: {}", path.string(), std::strerror(errno));
  struct stat info {};
  const int code = fstat(descriptor, &info) == 0 ? 0 : errno;
  const bool regular = code == 0 && S_ISREG(info.st_mode);
  map_bytes = regular ? static_cast<std::size_t>(info.st_size) : 0;
  void* address = nullptr;
  int map_code = 0;
  if (map_bytes >= kLengthBytes) {
    // Private: the pages are never written, and a Tensor holds a plain pointer.
    address = mmap(nullptr, map_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) {
      map_code = errno;
      address = nullptr;
    }
  }
  close(descriptor);
  if (!regular) {
    config_fail("{}: not a safetensors file: {}", path.string(),
                code != 0 ? std::strerror(code) : "no regular file");
  }
  if (map_bytes < kLengthBytes) {
    config_fail("{}: not a safetensors file: {} bytes, but its header length alone needs {}", path.string(),
                map_bytes, kLengthBytes);
  }
  if (address == nullptr) {
    config_fail("{}: cannot map {} bytes: {}", path.string(), map_bytes, std::strerror(map_code));
  }
  map = static_cast<std::byte*>(address);
}

void SafetensorsFile::State::read_header() {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, map, kLengthBytes);
  if (header_bytes > map_bytes - kLengthBytes) {
    config_fail("{}: damaged safetensors file: its header should have {} bytes, but only {} follow",
                path.string(), header_bytes, map_bytes - kLengthBytes);
  }
  if (header_bytes > kMaxHeaderBytes) {
    config_fail("{}: damaged safetensors file: a header of {} bytes (at most {} are allowed)", path.string(),
                header_bytes, kMaxHeaderBytes);
  }
  const auto* text = reinterpret_cast<const char*>(map) + kLengthBytes;
  HeaderParser parser(path, map_bytes - kLengthBytes - header_bytes);
  parser.parse(text, text + header_bytes);
  data = map + kLengthBytes + header_bytes;
  names = std::move(parser.names);
  records = std::move(parser.records);
  metadata = std::move(parser.metadata);
}

void* SafetensorsFile::State::aligned(const std::string& name, const Record& record) {
  const std::byte* source = data + record.begin;
  if (reinterpret_cast<std::uintptr_t>(source) % record.type->bytes == 0)
    return const_cast<std::byte*>(source);
  const std::size_t bytes = record.end - record.begin;
  const std::lock_guard lock(mutex);
  std::vector<std::uint64_t>& copy = copies[name];
  if (copy.empty()) {
    copy.resize(bytes / sizeof(std::uint64_t) + 1);
    std::memcpy(copy.data(), source, bytes);
  }
  return copy.data();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->map_file();
  state_->read_header();
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;

const std::filesystem::path& SafetensorsFile::path() const {
  return state_->path;
}
std::vector<std::string> SafetensorsFile::names() const {
  return state_->names;
}
bool SafetensorsFile::contains(const std::string& name) const {
  return state_->records.contains(name);
}
const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->metadata;
}

Tensor SafetensorsFile::get(const std::string& name) const {
  const auto found = state_->records.find(name);
  if (found == state_->records.end()) {
    config_fail("{}: no tensor {} among its {} tensors", state_->path.string(), in_quotes(name),
                state_->names.size());
  }
  const Record& record = found->second;
  if (!record.type->dtype) {
    config_fail("{}: tensor {} has dtype {}, which cannot be used here", state_->path.string(),
                in_quotes(name), record.type->name);
  }
  if (record.shape.size() > Shape::kMaxRank) {
    config_fail("{}: tensor {} has the shape {} of {} dimensions; at most {} are supported",
                state_->path.string(), in_quotes(name), shape_text(record.shape), record.shape.size(),
                Shape::kMaxRank);
  }
  Shape shape;
  for (const std::uint64_t size : record.shape) shape.push_back(static_cast<std::int64_t>(size));
  return Tensor::borrow(state_->aligned(name, record), *record.type->dtype, shape);
}

struct SafetensorsWriter::State {
  AtomicFile file;
  std::string path;
  std::vector<Entry> entries;
  std::size_t next = 0;
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<Entry>& entries,
                                     const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> seen;
  std::uint64_t position = 0;
  for (const Entry& entry : entries) {
    WEFT_CHECK(entry.name != "__metadata__" && seen.insert(entry.name).second, "{}: tensor name {} is taken",
               path.string(), in_quotes(entry.name));
    std::vector<std::int64_t> shape;
    for (int i = 0; i < entry.shape.rank(); ++i) shape.push_back(entry.shape[i]);
    const std::uint64_t bytes = static_cast<std::uint64_t>(entry.shape.elems()) * bytes_of(entry.dtype);
    header.push_back({entry.name,
                      {{"dtype", name_of(entry.dtype)},
                       {"shape", std::move(shape)},
                       {"data_offsets", {position, position + bytes}}}});
    position += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& e) {  // names and metadata may hold bytes that are no UTF-8
    fail("{}: names or metadata cannot be written as JSON: {}", path.string(), e.what());
  }
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  state_ = std::unique_ptr<State>(new State{AtomicFile(path), path.string(), entries});
  const std::uint64_t length = text.size();
  state_->file.write(&length, sizeof length);
  state_->file.write(text);
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const Tensor& tensor) {
  State& s = *state_;
  WEFT_CHECK(s.next < s.entries.size(), "{}: more tensors written than the {} declared", s.path,
             s.entries.size());
  const Entry& entry = s.entries[s.next];
  WEFT_CHECK(tensor.defined() && tensor.dtype() == entry.dtype && tensor.shape() == entry.shape,
             "{}: tensor {} was declared as {} {}, but {} is written", s.path, in_quotes(entry.name),
             name_of(entry.dtype), to_string(entry.shape),
             tensor.defined() ? fmt::format("{} {}", name_of(tensor.dtype()), to_string(tensor.shape()))
                              : "nothing");
  WEFT_CHECK(tensor.device().kind == DeviceKind::kCpu && (tensor.contiguous() || tensor.elems() == 0),
             "{}: tensor {} must be contiguous and in host memory", s.path, in_quotes(entry.name));
  s.file.write(tensor.raw(), tensor.bytes());
  ++s.next;
}

void SafetensorsWriter::commit() {
  State& s = *state_;
  WEFT_CHECK(s.next == s.entries.size(), "{}: commit after {} of {} tensors", s.path, s.next,
             s.entries.size());
  s.file.commit();
}

FileDigest SafetensorsWriter::digest() const {
  return state_->file.digest();
}

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.dtype(), tensor.shape()});
  SafetensorsWriter writer(path, entries, metadata);
  for (const auto& [name, tensor] : tensors) writer.write(tensor);
  writer.commit();
}

}  // namespace weft
