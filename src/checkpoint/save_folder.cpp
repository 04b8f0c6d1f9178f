#include "checkpoint/save_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/index.hpp"
#include "core/check.hpp"
#include "core/log.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr char kLockFile[] = ".weft-lock";

std::string errno_text(int code) {
  return fmt::format("{} (errno {})", std::strerror(code), code);
}

// A rename is on the disk when the folder that holds the names is. Some file systems cannot say so: EINVAL.
void flush_folder(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail("{}: cannot open: {}", folder.string(), errno_text(errno));
  const int code = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  if (code != 0 && code != EINVAL && code != ENOTSUP) {
    fail("{}: flushing the folder failed: {}", folder.string(), errno_text(code));
  }
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    fail("{}: renaming it to {} failed: {}", from.string(), to.filename().string(), errno_text(errno));
  }
}

// Without its index a folder is no checkpoint: one whose removal is cut short must not look like one.
void remove_iteration(const fs::path& folder) {
  fs::remove(folder / kIndexFile);
  fs::remove_all(folder);
}

// What a killed run was writing: this run alone writes here now, and nobody else would ever remove it.
void remove_rubbish(const fs::path& save) {
  const std::string unfinished = std::string(kLatestFile) + ".partial-";
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(save, ignored)) {
    const std::string name = entry.path().filename();
    const bool folder = name.starts_with("iter_") && name.ends_with(".tmp") && entry.is_directory(ignored);
    if (folder) {
      // Between two renames the new iteration may be whole under this name, and the old one lie beside it.
      const fs::path old = save / (name.substr(0, name.size() - 4) + ".old");
      if (!fs::exists(old, ignored)) fs::remove_all(entry.path(), ignored);
    } else if (name.starts_with(unfinished)) {
      fs::remove(entry.path(), ignored);
    }
  }
}

}  // namespace

fs::path unfinished_folder(const fs::path& save, std::int64_t iteration) {
  return save / (iteration_folder(iteration) + ".tmp");
}

fs::path publish_iteration(const fs::path& save, std::int64_t iteration) {
  const fs::path from = unfinished_folder(save, iteration);
  fs::path to = save / iteration_folder(iteration);
  flush_folder(from);
  if (rename(from.c_str(), to.c_str()) != 0) {
    const int code = errno;
    if (code != EEXIST && code != ENOTEMPTY) {
      fail("{}: renaming it to {} failed: {}", from.string(), to.filename().string(), errno_text(code));
    }
    // The iteration was saved before. In one step where the file system can, so that it is there at every
    // moment.
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      remove_iteration(from);
    } else {
      const fs::path old = to.string() + ".old";
      fs::remove_all(old);
      rename_folder(to, old);
      rename_folder(from, to);
      remove_iteration(old);
    }
  }
  flush_folder(save);
  write_file(save / kLatestFile, std::to_string(iteration));
  return to;
}

void delete_older(const fs::path& save, std::int64_t iteration, std::int64_t keep) {
  std::vector<std::int64_t> found = iterations_in(save);
  std::erase_if(found, [&](std::int64_t other) { return other > iteration; });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < found.size(); ++i) {
    const fs::path old = save / iteration_folder(found[i]);
    try {
      remove_iteration(old);
    } catch (const fs::filesystem_error& e) {
      log_warn("{}: deleting this older checkpoint failed: {}", old.string(), e.what());
    }
  }
}

SaveFolderLock::SaveFolderLock(const fs::path& save) : path_(save / kLockFile) {
  std::error_code error;
  fs::create_directories(save, error);
  if (error) config_fail("--save {}: cannot make this folder: {}", save.string(), error.message());
  for (;;) {
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) {
      config_fail("--save {}: cannot write into this folder: {}", save.string(), errno_text(errno));
    }
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      const int code = errno;
      close(descriptor_);
      if (code != EWOULDBLOCK) {
        log_warn("{}: cannot be locked ({}): nothing keeps a second run out of this folder", path_.string(),
                 errno_text(code));
        descriptor_ = -1;
        return;
      }
      config_fail("--save {}: another run writes there ({}); wait for it, stop it, or choose another folder",
                  save.string(), read_file(path_));
    }
    // The holder before us removes the file when it is done: what was locked may no longer be the file of
    // that name.
    struct stat held {
    }, named{};
    if (fstat(descriptor_, &held) == 0 && stat(path_.c_str(), &named) == 0 && held.st_ino == named.st_ino)
      break;
    close(descriptor_);
  }
  char host[256] = "unknown";
  gethostname(host, sizeof host - 1);
  const std::string text = fmt::format("process {} on {}", getpid(), host);
  if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, text.data(), text.size(), 0) < 0) {
    const int code = errno;
    unlink(path_.c_str());
    close(descriptor_);
    config_fail("--save {}: cannot write into this folder: {}", save.string(), errno_text(code));
  }
  remove_rubbish(save);
}

SaveFolderLock::~SaveFolderLock() {
  if (descriptor_ < 0) return;
  unlink(path_.c_str());
  close(descriptor_);
}

}  // namespace weft
