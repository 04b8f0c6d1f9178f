// Damaged, missing and unfitting checkpoints are named, never trusted.
#include <sys/resource.h>

#include "checkpoint/index.hpp"
#include "checkpoint/support.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

using namespace weft::test;

void write_raw(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Loads as one rank, with or without the optimizer's state.
void load(const fs::path& folder, const LoadOptions& options = {}, bool sgd = false,
          const std::vector<std::vector<GlobalTensor>>& model = small_model()) {
  run_ranks({1, 1}, [&](Communicator& world) {
    Rank rank(world, {1, 1}, DType::kF32, sgd, model);
    load_checkpoint(rank.lane(), CheckpointReader(folder), rank.parts(), options);
  });
}

TEST(CheckpointFaults, AnyDamagedByteOfAnyFile) {
  TemporaryFolder folder;
  save(folder.path(), {2, 2}, 3);
  const fs::path iteration = find_checkpoint(folder.path());
  const auto files = contents(iteration);
  ASSERT_EQ(files.size(), 6u);
  for (const auto& [name, bytes] : files) {
    for (const double where : {0.0, 0.02, 0.3, 0.5, 0.9, 1.0}) {
      SCOPED_TRACE(name + " at " + std::to_string(where));
      std::string damaged = bytes;
      damaged[static_cast<std::size_t>(where * static_cast<double>(bytes.size() - 1))] ^= 4;
      write_raw(iteration / name, damaged);
      const std::string error = config_error_of([&] {
        load(folder.path());
        CheckpointReader(folder.path()).extra_file("tokenizer.json");
      });
      expect_parts(error, {(iteration / name).string()});
      if (name == kIndexFile) {
        EXPECT_THROW(CheckpointReader{folder.path()}, ConfigError);
      } else {
        const auto problems = CheckpointReader(folder.path()).verify();
        ASSERT_EQ(problems.size(), 1u);
        expect_parts(problems[0], {(iteration / name).string(), "checksum", "the index says"});
      }
    }
    write_raw(iteration / name, bytes);
    EXPECT_TRUE(CheckpointReader(folder.path()).verify().empty());
  }
  load(folder.path());
}

TEST(CheckpointFaults, CutAndMissingFiles) {
  TemporaryFolder folder;
  save(folder.path(), {2, 2}, 3);
  const fs::path iteration = find_checkpoint(folder.path());
  for (const auto& [name, bytes] : contents(iteration)) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
      write_raw(iteration / name, bytes.substr(0, size));
      const std::string error = config_error_of([&] {
        load(folder.path());
        CheckpointReader(folder.path()).extra_file("tokenizer.json");
      });
      expect_parts(error, {(iteration / name).string(), "cut short", std::to_string(size) + " bytes"});
    }
    fs::remove(iteration / name);
    if (name != kIndexFile) {
      expect_parts(CheckpointReader(folder.path()).verify().at(0), {name, "No such file"});
    }
    write_raw(iteration / name, bytes);
  }
}

TEST(CheckpointFaults, FindsTheRightFolderOrSaysWhy) {
  TemporaryFolder folder;
  const fs::path save_folder = folder.path() / "save";
  EXPECT_FALSE(has_checkpoint(save_folder));
  expect_parts(config_error_of([&] { find_checkpoint(save_folder); }),
               {save_folder.string(), "no such folder"});
  fs::create_directories(save_folder);
  EXPECT_FALSE(has_checkpoint(save_folder));
  expect_parts(config_error_of([&] { find_checkpoint(save_folder); }),
               {save_folder.string(), "no checkpoint"});

  save(save_folder, {1, 1}, 4);
  save(save_folder, {1, 1}, 8);
  EXPECT_TRUE(has_checkpoint(save_folder));
  EXPECT_EQ(find_checkpoint(save_folder), save_folder / "iter_0000008");
  EXPECT_EQ(find_checkpoint(save_folder / "iter_0000004"), save_folder / "iter_0000004");

  const fs::path latest = save_folder / kLatestFile;
  EXPECT_EQ(read_file(latest), "8");
  write_raw(latest, "4\n");
  EXPECT_EQ(find_checkpoint(save_folder), save_folder / "iter_0000004");
  write_raw(latest, "6");
  expect_parts(config_error_of([&] { find_checkpoint(save_folder); }),
               {latest.string(), "iteration 6", "iter_0000004, iter_0000008"});
  write_raw(latest, "release");
  expect_parts(config_error_of([&] { find_checkpoint(save_folder); }), {latest.string(), "'release'"});
  fs::remove(latest);
  EXPECT_TRUE(has_checkpoint(save_folder));
  expect_parts(config_error_of([&] { find_checkpoint(save_folder); }),
               {kLatestFile, "name a folder", "iter_0000004, iter_0000008"});
}

TEST(CheckpointFaults, UnknownVersion) {
  TemporaryFolder folder;
  save(folder.path(), {1, 1}, 1);
  const fs::path index = find_checkpoint(folder.path()) / kIndexFile;
  std::string text = read_file(index);
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 9");
  write_raw(index, text);
  expect_parts(config_error_of([&] { CheckpointReader{folder.path()}; }),
               {index.string(), "version 9", "version 1"});
}

TEST(CheckpointFaults, CoverageIsChecked) {
  TemporaryFolder folder;
  save(folder.path(), {1, 2}, 1);
  const fs::path index = find_checkpoint(folder.path()) / kIndexFile;
  const CheckpointInfo whole = read_checkpoint_info(folder.path());
  const auto fault_of = [&](const std::function<void(CheckpointTensor&)>& change) {
    CheckpointInfo info = whole;
    for (CheckpointTensor& tensor : info.tensors) {
      if (tensor.kind == kWeightKind && tensor.name == "layer.linear_q.weight") change(tensor);
    }
    return config_error_of([&] { parse_index(index, index_text(info)); });
  };
  EXPECT_EQ(fault_of([](CheckpointTensor&) {}), "");
  expect_parts(fault_of([](CheckpointTensor& t) { t.pieces[1].begin = 3; }),
               {"linear_q", "twice", "at 3", "at 4"});
  expect_parts(fault_of([](CheckpointTensor& t) { t.pieces[1].begin = 5; }), {"linear_q", "missing"});
  expect_parts(fault_of([](CheckpointTensor& t) { t.pieces.pop_back(); }), {"linear_q", "4 of the 8"});
  expect_parts(fault_of([](CheckpointTensor& t) { t.pieces[0].file = "x.safetensors"; }), {"x.safetensors"});
  expect_parts(fault_of([](CheckpointTensor& t) { t.name = "layer.linear_k.weight"; }),
               {"linear_k", "twice"});
}

TEST(CheckpointFaults, ARangeThatSeveralRanksHoldCountsOnce) {
  TensorTable table;
  const auto add = [&](const char* file, std::int64_t begin) {
    add_piece(table,
              {.kind = "weight", .name = "k", .shape = {8, 2}, .cut = 0, .pieces = {{file, "k", begin, 4}}});
  };
  add("a", 0);
  add("b", 0);
  add("c", 4);
  add("d", 4);
  CheckpointInfo info;
  for (const char* name : {"a", "b", "c", "d"}) info.files.push_back({name, 0, 0});
  info.tensors.push_back(table.begin()->second);
  EXPECT_EQ(arrange(info), "");
  ASSERT_EQ(info.tensors[0].pieces.size(), 2u);
  EXPECT_EQ(info.tensors[0].pieces[0].file, "a");
}

// A tensor without any state was frozen and starts anew; one with a part of its states is damaged.
TEST(CheckpointFaults, StateOfATensorIsThereOrNotButNotInPart) {
  TemporaryFolder folder;
  save(folder.path(), {1, 1}, 1);
  const auto without = [&](const std::string& kind) {
    CheckpointInfo info = read_checkpoint_info(folder.path());
    std::erase_if(info.tensors, [&](const CheckpointTensor& t) {
      return t.kind == kind && t.name == "layer.linear_fc2.bias";
    });
    std::ofstream(info.folder / kIndexFile) << index_text(info);
  };
  without("exp_avg_sq");
  expect_parts(config_error_of([&] { load(folder.path(), {}); }),
               {"1 tensors of this model are not in it", "exp_avg_sq of layer.linear_fc2.bias"});
  without("exp_avg");
  load(folder.path(), {});
  without("weight");
  expect_parts(config_error_of([&] { load(folder.path(), {}); }), {"layer.linear_fc2.bias"});
}

TEST(CheckpointFaults, TensorsThatDoNotFit) {
  TemporaryFolder folder;
  save(folder.path(), {1, 1}, 1);
  auto model = small_model();
  model[1][0].name = "layer.other_layernorm.weight";
  model[7][0].shape = {5};
  const std::string error = config_error_of([&] { load(folder.path(), {}, false, model); });
  expect_parts(error, {"layer.other_layernorm.weight", "exp_avg of layer.other_layernorm.weight",
                       "layer.input_layernorm.weight", "layer.linear_fc2.bias is [6], the model needs [5]"});

  model = small_model();
  model.pop_back();
  expect_parts(config_error_of([&] { load(folder.path(), {}, false, model); }),
               {"3 tensors in it are not in this model", "layer.linear_fc2.bias"});
  load(folder.path(), {.part_of_model = true}, false, model);

  expect_parts(config_error_of([&] { load(folder.path(), {}, true); }),
               {"exp_avg, exp_avg_sq", "momentum", "--optimizer", "--no-load-optim"});
  load(folder.path(), {.optimizer_state = false}, true);
}

}  // namespace
}  // namespace weft
