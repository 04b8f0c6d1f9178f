#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "core/check.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weft {
namespace {

std::string errno_text(int code) {
  return fmt::format("{} (errno {})", std::strerror(code), code);
}

// A write beyond RLIMIT_FSIZE raises SIGXFSZ, which would kill the process before it can say why. While this
// object lives the thread holds the signal back, so that write() returns EFBIG.
class HoldFileSizeSignal {
 public:
  HoldFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~HoldFileSizeSignal() {
    if (sigismember(&before_, SIGXFSZ) == 0) {
      const timespec now{};
      while (sigtimedwait(&signal_, nullptr, &now) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HoldFileSizeSignal(const HoldFileSizeSignal&) = delete;
  HoldFileSizeSignal& operator=(const HoldFileSizeSignal&) = delete;

 private:
  sigset_t signal_, before_;
};

// Where the bytes must land: a link is followed, so that renaming does not replace the link itself.
std::filesystem::path resolve(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_symlink(path, ignored)) return path;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, ignored);
  return ignored ? path : target;
}

// A rename is only durable once the directory is on the disk. File systems that cannot do this say EINVAL.
void flush_directory_of(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  const int directory = open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  const int code = fsync(directory) == 0 ? 0 : errno;
  close(directory);
  if (code != 0 && code != EINVAL && code != ENOTSUP) {
    fail("{}: written, but flushing its directory failed: {}", path.string(), errno_text(code));
  }
}

}  // namespace

struct AtomicFile::Hash {
  XXH3_state_t state;
};

AtomicFile::AtomicFile(std::filesystem::path path) : path_(resolve(path)), hash_(std::make_unique<Hash>()) {
  XXH3_64bits_reset(&hash_->state);
  struct stat info {};
  if (stat(path_.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) fail("{}: cannot write this file: a directory has that name", path_.string());
    if (!S_ISREG(info.st_mode)) {  // /dev/null, a pipe: nothing to rename onto, and it must not be replaced
      descriptor_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
      if (descriptor_ < 0) fail("{}: cannot open for writing: {}", path_.string(), errno_text(errno));
      return;
    }
  }
  do {
    std::uint32_t tag = 0;
    if (getrandom(&tag, sizeof tag, 0) != sizeof tag) tag = static_cast<std::uint32_t>(getpid());
    temporary_ = path_;
    temporary_ += fmt::format(".partial-{:08x}", tag);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) {
    fail("{}: cannot create {}: {}", path_.string(), temporary_.filename().string(), errno_text(errno));
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  WEFT_CHECK(descriptor_ >= 0, "{}: written to after it was finished", path_.string());
  const auto* next = static_cast<const char*>(data);
  std::size_t left = bytes;
  const HoldFileSizeSignal hold;
  while (left > 0) {
    const std::size_t piece =
        std::min<std::size_t>(left, std::size_t{1} << 30);  // Linux writes at most 2 GiB a call
    const ssize_t done = ::write(descriptor_, next, piece);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      const std::string why = done == 0 ? "nothing was written" : errno_text(errno);
      fail("{}: writing {} bytes failed after {} of them ({} bytes of the file before): {}", path_.string(),
           bytes, bytes - left, written_, why);
    }
    next += done;
    left -= static_cast<std::size_t>(done);
  }
  written_ += bytes;
  XXH3_64bits_update(&hash_->state, data, bytes);
}

FileDigest AtomicFile::digest() const {
  return {written_, XXH3_64bits_digest(&hash_->state)};
}

void AtomicFile::finish() {
  WEFT_CHECK(descriptor_ >= 0, "{}: finished twice", path_.string());
  // Some file systems find out that the disk is full only here.
  if (!temporary_.empty() && fsync(descriptor_) != 0) {
    fail("{}: flushing {} bytes to disk failed: {}", path_.string(), written_, errno_text(errno));
  }
  if (close(std::exchange(descriptor_, -1)) != 0) {
    fail("{}: closing after {} bytes failed: {}", path_.string(), written_, errno_text(errno));
  }
}

void AtomicFile::commit() {
  WEFT_CHECK(!std::exchange(committed_, true), "{}: commit twice", path_.string());
  if (descriptor_ >= 0) finish();
  if (temporary_.empty()) return;  // no plain file
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("{}: renaming {} ({} bytes) to it failed: {}", path_.string(), temporary_.filename().string(),
         written_, errno_text(errno));
  }
  temporary_.clear();
  flush_directory_of(path_);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void check_output(std::string_view option, const std::filesystem::path& path,
                  const std::vector<std::filesystem::path>& inputs) {
  std::error_code ignored;
  for (const std::filesystem::path& input : inputs) {
    if (std::filesystem::equivalent(path, input, ignored)) {
      config_fail("{} {} is the input {}, which it would replace: name another file", option, path.string(),
                  input.string());
    }
    // A file that is there already, somewhere in a folder that is read: a model's weights, say.
    if (!std::filesystem::is_directory(input, ignored) || !std::filesystem::exists(path, ignored)) continue;
    const std::filesystem::path from = std::filesystem::canonical(path, ignored)
                                           .lexically_relative(std::filesystem::canonical(input, ignored));
    if (!from.empty() && *from.begin() != "..") {
      config_fail("{} {} is a file of the input {}, which it would replace: name another file", option,
                  path.string(), input.string());
    }
  }
  const bool special = std::filesystem::exists(path, ignored) &&
                       !std::filesystem::is_regular_file(path, ignored) &&
                       !std::filesystem::is_directory(path, ignored);
  if (special) return;  // a pipe: opening it is already an act
  try {
    const AtomicFile trial(path);
  } catch (const Error& e) {
    config_fail("{} {}", option, e.what());
  }
}

namespace {

// Calls piece(data, bytes) on everything in a file, in order; first size(bytes) when the size is known
// beforehand.
template <class Size, class Piece>
void read_pieces(const std::filesystem::path& path, const Size& size, const Piece& piece) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) config_fail("{}: cannot open for reading: {}", path.string(), errno_text(errno));
  struct stat info {};
  // The size is only a hint: pipes and files in /proc have none.
  if (fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode)) size(static_cast<std::size_t>(info.st_size));
  std::vector<char> buffer(1 << 20);
  std::size_t total = 0;
  for (;;) {
    const ssize_t got = read(descriptor, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int code = errno;
      close(descriptor);
      config_fail("{}: reading failed after {} bytes: {}", path.string(), total, errno_text(code));
    }
    if (got == 0) break;
    total += static_cast<std::size_t>(got);
    piece(buffer.data(), static_cast<std::size_t>(got));
  }
  close(descriptor);
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  std::string text;
  read_pieces(
      path, [&](std::size_t bytes) { text.reserve(bytes); },
      [&](const char* data, std::size_t bytes) { text.append(data, bytes); });
  return text;
}

FileDigest file_digest(const std::filesystem::path& path) {
  const auto state = std::make_unique<XXH3_state_t>();
  XXH3_64bits_reset(state.get());
  FileDigest digest;
  read_pieces(
      path, [](std::size_t) {},
      [&](const char* data, std::size_t bytes) {
        digest.bytes += bytes;
        XXH3_64bits_update(state.get(), data, bytes);
      });
  digest.checksum = XXH3_64bits_digest(state.get());
  return digest;
}

std::uint64_t checksum(const void* data, std::size_t bytes) {
  return XXH3_64bits(data, bytes);
}

}  // namespace weft
