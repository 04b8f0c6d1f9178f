#include "data/indexed_dataset.hpp"

#include <cstring>
#include <nlohmann/json.hpp>

#include "data/support.hpp"

namespace weft {
namespace {

using test::golden;
using test::holds;
using test::message_of;
using test::slurp;
using test::spill;
using test::TempDir;

nlohmann::json golden_file(const std::string& name) {
  return nlohmann::json::parse(slurp(golden("data/manifest.json")))["files"][name];
}

class GoldenDataset : public testing::TestWithParam<const char*> {};

TEST_P(GoldenDataset, IsReadAndWrittenByteForByte) {
  const std::string name = GetParam();
  const auto reference = golden_file(name);
  const auto sequences = reference["tokens"].get<std::vector<std::vector<std::int32_t>>>();
  const auto table = reference["document_indices"].get<std::vector<std::int64_t>>();

  const IndexedDataset read(golden("data/" + name));
  EXPECT_EQ(name_of(read.type()), reference["dtype"] == "uint16" ? "u16" : "i32");
  ASSERT_EQ(read.documents(), std::ssize(sequences));
  EXPECT_TRUE(std::ranges::equal(read.document_table(), table));
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    std::vector<std::int32_t> tokens(sequences[i].size());
    read.read(static_cast<std::int64_t>(i), 0, tokens);
    EXPECT_EQ(tokens, sequences[i]) << i;
  }

  const TempDir dir;
  IndexedDatasetWriter writer(dir / "out", read.type());
  for (std::size_t d = 0; d + 1 < table.size(); ++d) {
    for (auto s = table[d]; s < table[d + 1]; ++s)
      writer.add_sequence(sequences[static_cast<std::size_t>(s)]);
    writer.end_document();
  }
  writer.commit();
  EXPECT_EQ(slurp(dir / "out.bin"), slurp(golden("data/" + name + ".bin")));
  EXPECT_EQ(slurp(dir / "out.idx"), slurp(golden("data/" + name + ".idx")));
}
INSTANTIATE_TEST_SUITE_P(Files, GoldenDataset,
                         testing::Values("u16", "i32", "b1_u16", "b2_u16", "multiseq_i32", "merged_u16"),
                         [](const auto& param) { return std::string(param.param); });

TEST(IndexedDataset, MergesByteForByte) {
  const TempDir dir;
  const std::vector<std::filesystem::path> parts{golden("data/b1_u16"), golden("data/b2_u16")};
  merge_datasets(parts, dir / "merged");
  EXPECT_EQ(slurp(dir / "merged.bin"), slurp(golden("data/merged_u16.bin")));
  EXPECT_EQ(slurp(dir / "merged.idx"), slurp(golden("data/merged_u16.idx")));
}

TEST(IndexedDataset, MergeKeepsDocumentsOfSeveralSequences) {
  const TempDir dir;
  const std::vector<std::filesystem::path> parts{golden("data/multiseq_i32"), golden("data/multiseq_i32")};
  merge_datasets(parts, dir / "merged");
  const IndexedDataset merged(dir / "merged");
  EXPECT_TRUE(std::ranges::equal(merged.document_table(), std::vector<std::int64_t>{0, 2, 3, 6, 8, 9, 12}));
}

TEST(IndexedDataset, RefusesToMergeDifferentTypes) {
  const TempDir dir;
  const std::vector<std::filesystem::path> parts{golden("data/b1_u16"), golden("data/i32")};
  const auto text = message_of<ConfigError>([&] { merge_datasets(parts, dir / "merged"); });
  EXPECT_TRUE(holds(text, {"i32.bin", "i32", "u16"}));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(IndexedDataset, VocabularyChoosesTheType) {
  EXPECT_EQ(token_type_for(1), TokenType::kU16);
  EXPECT_EQ(token_type_for(65536), TokenType::kU16);
  EXPECT_EQ(token_type_for(65537), TokenType::kI32);
  const TempDir dir;
  const std::vector<std::int32_t> edge{0, 65535};
  IndexedDatasetWriter writer(dir / "edge", std::int64_t{65536});
  writer.add_document(edge);
  writer.commit();
  std::vector<std::int32_t> tokens(2);
  IndexedDataset(dir / "edge").read(0, 0, tokens);
  EXPECT_EQ(tokens, edge);
}

TEST(IndexedDataset, RefusesIdsOutsideTheVocabularyAndLeavesNothing) {
  const TempDir dir;
  for (const std::int32_t id : {-1, 97}) {
    IndexedDatasetWriter writer(dir / "set", std::int64_t{97});
    writer.add_document(std::vector<std::int32_t>{96});
    const auto text = message_of<Error>([&] { writer.add_document(std::vector<std::int32_t>{3, id}); });
    EXPECT_TRUE(holds(text, {"set.bin", "sequence 1", std::to_string(id), "97"}));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

// Two sets of 3 and 2 documents, merged, and every way of damaging an index.
class Damage : public testing::Test {
 protected:
  void SetUp() override {
    write("a", {{1, 2, 3, 4, 5}, {6}, {7, 8, 9, 10}});
    write("b", {{11, 12, 13, 14, 15, 16, 17}, {18, 19}});
    const std::vector<std::filesystem::path> parts{dir_ / "a", dir_ / "b"};
    merge_datasets(parts, dir_ / "whole");
    idx_ = slurp(dir_ / "whole.idx");
    bin_ = slurp(dir_ / "whole.bin");
  }
  void write(const std::string& name, const std::vector<std::vector<std::int32_t>>& documents) {
    IndexedDatasetWriter writer(dir_ / name, std::int64_t{100});
    for (const auto& document : documents) writer.add_document(document);
    writer.commit();
  }
  // The message for an index and tokens with these bytes.
  std::string refusal(std::string_view idx, std::string_view bin) {
    spill(dir_ / "bad.idx", idx);
    spill(dir_ / "bad.bin", bin);
    return message_of<ConfigError>([&] { IndexedDataset data(dir_ / "bad"); });
  }
  template <class T>
  std::string with(std::size_t at, T value) const {
    std::string copy = idx_;
    std::memcpy(copy.data() + at, &value, sizeof(value));
    return copy;
  }

  TempDir dir_;
  std::string idx_, bin_;
};

TEST_F(Damage, TheWholeOneIsSound) {
  const IndexedDataset whole(dir_ / "whole");
  EXPECT_TRUE(std::ranges::equal(whole.lengths(), std::vector<std::int32_t>{5, 1, 4, 7, 2}));
  EXPECT_TRUE(std::ranges::equal(whole.document_table(), std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(bin_, slurp(dir_ / "a.bin") + slurp(dir_ / "b.bin"));
}

TEST_F(Damage, EmptyDocumentsMerge) {
  write("a0", {{1, 2, 3, 4, 5}, {}, {6}, {7, 8, 9, 10}});
  const std::vector<std::filesystem::path> parts{dir_ / "a0", dir_ / "b"};
  merge_datasets(parts, dir_ / "with_empty");
  const IndexedDataset merged(dir_ / "with_empty");
  EXPECT_TRUE(std::ranges::equal(merged.lengths(), std::vector<std::int32_t>{5, 0, 1, 4, 7, 2}));
}

TEST_F(Damage, HeaderFieldsAreNamed) {
  EXPECT_TRUE(holds(refusal(with(0, 'X'), bin_), {"bad.idx", "magic", "MMIDIDX", "XMIDIDX"}));
  EXPECT_TRUE(
      holds(refusal(with(9, std::uint64_t{2}), bin_), {"bad.idx", "version", "expected 1", "found 2"}));
  for (const int code : {0, 6, 7, 99})
    EXPECT_TRUE(holds(refusal(with(17, static_cast<std::uint8_t>(code)), bin_),
                      {"bad.idx", "dtype code", fmt::format("found {}", code)}));
  EXPECT_TRUE(holds(refusal(with(18, std::uint64_t{6}), bin_), {"bad.idx", "sequence count", "6"}));
  EXPECT_TRUE(holds(refusal(with(18, ~std::uint64_t{0}), bin_), {"bad.idx", "sequence count"}));
  EXPECT_TRUE(holds(refusal(with(18, std::uint64_t{1} << 62), bin_), {"bad.idx", "sequence count"}));
  EXPECT_TRUE(holds(refusal(with(26, std::uint64_t{1} << 61), bin_), {"bad.idx", "document count"}));
}

TEST_F(Damage, EveryCutIsFound) {
  for (std::size_t size = 0; size < idx_.size(); size += 8)
    EXPECT_TRUE(holds(refusal(idx_.substr(0, size), bin_), {"bad.idx", size < 34 ? "header" : "hold"}) ||
                holds(refusal(idx_.substr(0, size), bin_), {"bad.idx", "size: expected"}))
        << size;
  EXPECT_TRUE(holds(refusal(idx_ + "\n", bin_), {"bad.idx", "size: expected"}));
}

TEST_F(Damage, TablesAreCheckedAgainstEachOther) {
  constexpr std::size_t kLengths = 34, kStarts = kLengths + 5 * 4, kTable = kStarts + 5 * 8;
  EXPECT_TRUE(holds(refusal(with(kLengths + 8, std::int32_t{-4}), bin_),
                    {"bad.idx", "length of sequence 2", "found -4"}));
  EXPECT_TRUE(holds(refusal(with(kStarts + 16, std::int64_t{13}), bin_),
                    {"bad.idx", "byte offset of sequence 2", "expected 12", "found 13"}));
  EXPECT_TRUE(holds(refusal(with(kTable, std::int64_t{1}), bin_), {"bad.idx", "document table", "found 1"}));
  EXPECT_TRUE(holds(refusal(with(kTable + 16, std::int64_t{7}), bin_), {"bad.idx", "document table"}));
  EXPECT_TRUE(holds(refusal(with(kTable + 40, std::int64_t{4}), bin_),
                    {"bad.idx", "document table", "sequence count 5", "found 4"}));
}

TEST_F(Damage, TokensMustBeAsManyAsTheIndexSays) {
  EXPECT_TRUE(holds(refusal(idx_, bin_.substr(0, bin_.size() - 1)), {"bad.bin", "expected 38", "found 37"}));
  EXPECT_TRUE(holds(refusal(idx_, bin_ + "xy"), {"bad.bin", "expected 38", "found 40"}));
}

TEST_F(Damage, MissingFilesAreNamed) {
  EXPECT_TRUE(holds(message_of<ConfigError>([&] { IndexedDataset data(dir_ / "none"); }), {"none.idx"}));
  std::filesystem::remove(dir_ / "a.bin");
  EXPECT_TRUE(holds(message_of<ConfigError>([&] { IndexedDataset data(dir_ / "a"); }), {"a.bin"}));
}

TEST_F(Damage, AnUnfinishedWriteLeavesTheOldPair) {
  {
    IndexedDatasetWriter writer(dir_ / "whole", std::int64_t{100});
    writer.add_document(std::vector<std::int32_t>{1});
  }
  EXPECT_EQ(slurp(dir_ / "whole.idx"), idx_);
  EXPECT_EQ(slurp(dir_ / "whole.bin"), bin_);
  EXPECT_TRUE(test::unfinished_files(dir_.path()).empty());
}

}  // namespace
}  // namespace weft
