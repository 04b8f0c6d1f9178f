// A save is whole or has not happened.
#include <fcntl.h>
#include <sys/resource.h>

#include "checkpoint/index.hpp"
#include "checkpoint/save_folder.hpp"
#include "checkpoint/support.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

using namespace weft::test;

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST(CheckpointSave, HoldsWhatTheCallerGave) {
  TemporaryFolder folder;
  save(folder.path(), {2, 1}, 12);
  const CheckpointReader reader(folder.path());
  EXPECT_EQ(reader.info().folder, folder.path() / "iter_0000012");
  EXPECT_EQ(reader.info().iteration, 12);
  EXPECT_EQ(reader.info().optimizer_steps, 12);
  EXPECT_EQ(reader.info().model, meta_of(12).model);
  EXPECT_EQ(reader.info().trainer, meta_of(12).trainer);
  EXPECT_EQ(reader.info().layout, R"({"ranks":2,"dp":2,"tp":1,"pp":1})");
  EXPECT_EQ(reader.info().states, (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(reader.extra_file("tokenizer.json"), "{\"a\": 1}");
  EXPECT_EQ(reader.extra_file("merges.txt"), "");
  EXPECT_EQ(reader.names().size(), 13u) << "the tied output layer has no tensor of its own";
  EXPECT_TRUE(reader.verify().empty());
}

// One rank of four cannot write its shard: its file passes the limit, those of the others do not.
TEST(CheckpointSave, OneRanksErrorLeavesTheFormerCheckpoint) {
  TemporaryFolder folder, other;
  const Layout layout = {2, 2};
  save(folder.path(), layout, 2);
  save(other.path(), layout, 2);
  save(other.path(), layout, 4);
  std::map<std::string, std::uint64_t> sizes;
  for (const CheckpointFile& file : read_checkpoint_info(other.path()).files) sizes[file.name] = file.bytes;
  const auto largest =
      std::max_element(sizes.begin(), sizes.end(), [](auto& a, auto& b) { return a.second < b.second; });
  const auto before = contents(folder.path());

  std::vector<std::string> errors(4);
  std::string error;
  {
    const FileSizeLimit limit(largest->second - 1);
    error = error_of([&] {
      run_ranks(layout, [&](Communicator& world) {
        Rank rank(world, layout);
        rank.fill(4);
        try {
          save_checkpoint(rank.lane(), rank.groups(), rank.parts(), meta_of(4), folder.path());
        } catch (const Error& e) {
          errors[static_cast<std::size_t>(world.rank())] = e.what();
          throw;
        }
      });
    });
  }
  const std::string number(1, largest->first[10]);
  expect_parts(error, {largest->first, "iteration 4 failed on rank " + number, "File too large", "bytes"});
  EXPECT_EQ(std::count(errors.begin(), errors.end(), errors[0]), 4) << "every rank has the same message";
  EXPECT_EQ(contents(folder.path()), before);
  EXPECT_FALSE(fs::exists(unfinished_folder(folder.path(), 4)));
  EXPECT_EQ(find_checkpoint(folder.path()), folder.path() / "iter_0000002");

  save(folder.path(), layout, 4);  // with room
  EXPECT_EQ(contents(folder.path()), contents(other.path()));
}

TEST(CheckpointSave, RubbishOfAnEarlierTryIsReplaced) {
  TemporaryFolder folder, other;
  save(other.path(), {1, 2}, 4);
  const fs::path unfinished = unfinished_folder(folder.path(), 4);
  fs::create_directories(unfinished / "deeper");
  write_file(unfinished / "shard_00007.safetensors", "rubbish");
  write_file(unfinished / kIndexFile, "rubbish");
  save(folder.path(), {1, 2}, 4);
  EXPECT_EQ(contents(folder.path()), contents(other.path()));
}

TEST(CheckpointSave, TheSameIterationAgain) {
  TemporaryFolder folder, other;
  save(folder.path(), {3, 1}, 4);
  save(folder.path(), {1, 1}, 4);
  save(other.path(), {1, 1}, 4);
  EXPECT_EQ(contents(folder.path()), contents(other.path()));
  EXPECT_FALSE(fs::exists(unfinished_folder(folder.path(), 4)));
}

TEST(CheckpointSave, FailsWhereNothingCanBeWritten) {
  TemporaryFolder folder;
  write_file(folder.path() / "file", "");
  for (const Layout& layout : {Layout{1, 1}, Layout{2, 2}}) {
    expect_parts(error_of([&] { save(folder.path() / "file" / "deeper", layout, 4); }),
                 {"iteration 4 failed on rank 0", "Not a directory"});
  }
}

TEST(CheckpointSave, KeepsTheNewest) {
  TemporaryFolder folder;
  for (const int iteration : {1, 2, 3, 4}) save(folder.path(), {1, 1}, iteration);
  save(folder.path(), {1, 1}, 3, {.keep_last = 2});
  EXPECT_EQ(iterations_in(folder.path()), (std::vector<std::int64_t>{2, 3, 4}))
      << "later ones are not old ones";
  EXPECT_EQ(find_checkpoint(folder.path()), folder.path() / "iter_0000003");
  save(folder.path(), {1, 1}, 5, {.keep_last = 1});
  EXPECT_EQ(iterations_in(folder.path()), (std::vector<std::int64_t>{5}));
  {
    const FileSizeLimit limit(500);
    EXPECT_NE(error_of([&] { save(folder.path(), {1, 1}, 6, {.keep_last = 1}); }), "");
  }
  EXPECT_EQ(iterations_in(folder.path()), (std::vector<std::int64_t>{5})) << "nothing goes when a save fails";
}

TEST(SaveFolderLock, KeepsASecondRunOut) {
  TemporaryFolder folder;
  const fs::path save_folder = folder.path() / "new" / "save";
  {
    const SaveFolderLock lock(save_folder);
    expect_parts(config_error_of([&] { SaveFolderLock second(save_folder); }),
                 {save_folder.string(), "process " + std::to_string(getpid()) + " on ", "another run"});
  }
  EXPECT_TRUE(fs::is_empty(save_folder));
  const SaveFolderLock again(save_folder);
}

TEST(SaveFolderLock, RemovesWhatAKilledRunLeft) {
  TemporaryFolder folder;
  save(folder.path(), {1, 1}, 2);
  const auto before = contents(folder.path());
  fs::create_directories(unfinished_folder(folder.path(), 3));
  write_file(unfinished_folder(folder.path(), 3) / "shard_00000.safetensors", "half");
  write_file(folder.path() / (std::string(kLatestFile) + ".partial-0123abcd"), "3");
  write_file(folder.path() / "notes.tmp", "the user's");
  { const SaveFolderLock lock(folder.path()); }
  EXPECT_TRUE(fs::remove(folder.path() / "notes.tmp"));
  EXPECT_EQ(contents(folder.path()), before);
}

TEST(SaveFolderLock, FolderMustBeWritable) {
  TemporaryFolder folder;
  write_file(folder.path() / "file", "");
  expect_parts(config_error_of([&] { SaveFolderLock lock(folder.path() / "file" / "save"); }),
               {"--save", "file/save", "Not a directory"});
  expect_parts(config_error_of([&] { SaveFolderLock lock("/proc/save"); }), {"--save /proc/save"});
}

}  // namespace
}  // namespace weft
