#include "io/atomic_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "core/check.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  AtomicFileTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / fmt::format("weft-atomic-{}-{}", getpid(), test->name());
    fs::create_directories(folder_);
  }
  ~AtomicFileTest() override { fs::remove_all(folder_); }

  fs::path folder_;
};

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST_F(AtomicFileTest, AppearsOnlyAtCommitAndReplaces) {
  const fs::path path = folder_ / "file";
  write_file(path, "old");
  {
    AtomicFile file(path);
    file.write("half");
    EXPECT_EQ(read_file(path), "old");
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);  // the unfinished one is gone

  AtomicFile file(path);
  file.write("new ");
  file.write("text");
  file.commit();
  EXPECT_EQ(read_file(path), "new text");
  EXPECT_THROW(file.write("x"), Error);
  EXPECT_THROW(file.commit(), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(AtomicFileTest, FinishedFilesWaitForCommit) {
  {
    AtomicFile first(folder_ / "first"), second(folder_ / "second");
    first.write("1");
    first.finish();
    EXPECT_THROW(first.write("more"), Error);
    EXPECT_FALSE(fs::exists(folder_ / "first"));
    second.write("2");
    second.finish();
    first.commit();
    EXPECT_EQ(read_file(folder_ / "first"), "1");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);  // the one that was not committed is gone
}

TEST_F(AtomicFileTest, BytesAndModeSurvive) {
  std::string bytes(3'000'001, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 24);
  write_file(folder_ / "big", bytes);
  EXPECT_EQ(read_file(folder_ / "big"), bytes);
  struct stat info {};
  ASSERT_EQ(stat((folder_ / "big").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0200, 0200u);
  EXPECT_EQ(info.st_mode & 0111, 0u);
}

TEST_F(AtomicFileTest, LinksAreFollowedAndDevicesAreNotReplaced) {
  write_file(folder_ / "target", "old");
  fs::create_symlink("target", folder_ / "link");
  write_file(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "target"), "new");
  write_file("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(AtomicFileTest, CannotCreate) {
  expect_parts(error_of([&] { write_file(folder_ / "no/such/file", "x"); }),
               {(folder_ / "no/such/file").string(), "cannot create", "No such file"});
  fs::create_directories(folder_ / "directory");
  expect_parts(error_of([&] { write_file(folder_ / "directory", "x"); }), {"a directory has that name"});
  if (geteuid() == 0) return;  // root may write anywhere
  fs::permissions(folder_ / "directory", fs::perms::owner_read | fs::perms::owner_exec);
  expect_parts(error_of([&] { write_file(folder_ / "directory/file", "x"); }), {"Permission denied"});
  fs::permissions(folder_ / "directory", fs::perms::owner_all);
}

TEST_F(AtomicFileTest, TooLargeForTheLimitIsAnErrorAndNoSignal) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{100'000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] {
    AtomicFile file(folder_ / "file");
    file.write(std::string(60'000, 'x'));
    file.write(std::string(60'000, 'y'));
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  expect_parts(error, {(folder_ / "file").string(), "writing 60000 bytes failed after 40000 of them",
                       "60000 bytes of the file before", "File too large"});
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(AtomicFileTest, FullDisk) {
  expect_parts(error_of([&] { write_file("/dev/full", "twelve bytes"); }),
               {"/dev/full", "writing 12 bytes failed after 0 of them", "No space left on device"});
}

TEST_F(AtomicFileTest, ReadFaultsAreConfigErrors) {
  EXPECT_THROW(read_file(folder_ / "absent"), ConfigError);
  EXPECT_THROW(read_file(folder_), ConfigError);
  expect_parts(error_of([&] { read_file(folder_ / "absent"); }),
               {(folder_ / "absent").string(), "No such file"});
  write_file(folder_ / "empty", "");
  EXPECT_EQ(read_file(folder_ / "empty"), "");
}

TEST_F(AtomicFileTest, DigestIsOfTheWholeFile) {
  std::string all;
  AtomicFile file(folder_ / "file");
  for (const std::size_t bytes : {1u, 300u, 0u, 2'500'000u}) {
    const std::string piece(bytes, static_cast<char>('a' + bytes % 26));
    file.write(piece);
    all += piece;
    EXPECT_EQ(file.digest().checksum, checksum(all.data(), all.size()));
  }
  file.commit();
  EXPECT_EQ(file.digest().bytes, all.size());
  EXPECT_EQ(file_digest(folder_ / "file").bytes, all.size());
  EXPECT_EQ(file_digest(folder_ / "file").checksum, checksum(all.data(), all.size()));
  expect_parts(error_of([&] { file_digest(folder_ / "absent"); }),
               {(folder_ / "absent").string(), "No such file"});
}

TEST_F(AtomicFileTest, OutputsKeepWhatIsRead) {
  std::filesystem::create_directories(folder_ / "model" / "iter_1");
  write_file(folder_ / "model" / "iter_1" / "shard", "weights");
  expect_parts(
      error_of([&] { check_output("--out", folder_ / "model" / "iter_1" / "shard", {folder_ / "model"}); }),
      {"--out", "shard", "would replace"});
  check_output("--out", folder_ / "model" / "scores", {folder_ / "model"});  // a new file
  check_output("--out", folder_ / "scores", {folder_ / "model"});
  EXPECT_EQ(read_file(folder_ / "model" / "iter_1" / "shard"), "weights");
}

TEST(Checksum, IsXxh3) {
  EXPECT_EQ(checksum("", 0), 0x2D06800538D394C2u);  // the published value of XXH3-64 for no input
  EXPECT_NE(checksum("abc", 3), checksum("abd", 3));
}

}  // namespace
}  // namespace weft
