#include "data/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.hpp"

namespace weft {
namespace {

constexpr std::size_t kReadBlock = std::size_t{1} << 18;

int open_for_reading(const std::filesystem::path& path, struct stat& status) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    config_fail("{}: cannot be opened for reading: {}", path.string(), std::strerror(errno));
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    config_fail("{}: cannot be examined: {}", path.string(), std::strerror(error));
  }
  if (S_ISDIR(status.st_mode)) {
    ::close(descriptor);
    config_fail("{}: is a folder, a file is needed", path.string());
  }
  return descriptor;
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  struct stat status {};
  const int descriptor = open_for_reading(path_, status);
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    config_fail("{}: is not a plain file", path_.string());
  }
  size_ = static_cast<std::size_t>(status.st_size);
  void* map = size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (map == MAP_FAILED)
    config_fail("{}: {} bytes cannot be mapped: {}", path_.string(), size_, std::strerror(error));
  data_ = static_cast<const std::byte*>(map);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  struct stat status {};
  descriptor_ = open_for_reading(path_, status);
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

std::size_t InputFile::read(std::string& to, std::size_t bytes) {
  const std::size_t before = to.size();
  if (position_ < buffer_.size()) {
    const std::size_t count = std::min(bytes, buffer_.size() - position_);
    to.append(buffer_, position_, count);
    position_ += count;
    return count;
  }
  to.resize(before + bytes);
  ssize_t count = 0;
  do {
    count = ::read(descriptor_, to.data() + before, bytes);
  } while (count < 0 && errno == EINTR);
  const int error = errno;
  to.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (count < 0) fail("{}: cannot be read: {}", path_.string(), std::strerror(error));
  return static_cast<std::size_t>(count);
}

bool InputFile::line(std::string& to) {
  to.clear();
  while (true) {
    const std::size_t end = buffer_.find('\n', position_);
    if (end != std::string::npos) {
      to.append(buffer_, position_, end + 1 - position_);
      position_ = end + 1;
      return true;
    }
    to.append(buffer_, position_);
    buffer_.clear();
    position_ = 0;
    if (read(buffer_, kReadBlock) == 0) return !to.empty();
  }
}

void OutputFile::write(const void* data, std::size_t bytes) {
  if (buffer_.size() + bytes > kBlock) {
    file_.write(buffer_);
    buffer_.clear();
  }
  if (bytes > kBlock) {
    file_.write(data, bytes);
  } else {
    buffer_.append(static_cast<const char*>(data), bytes);
  }
}

void OutputFile::finish() {
  file_.write(buffer_);
  buffer_.clear();
  file_.finish();
}

void OutputFile::publish() {
  WEFT_CHECK(buffer_.empty(), "a file is published before it is finished");
  file_.commit();
}

}  // namespace weft
