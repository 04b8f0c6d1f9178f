// The rules of the tree: who may include whom, words that must not stand in the code, and how long a file may
// be. Each rule is shown to bite on a small tree with planted faults before it is held against src/.
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "source_rules.hpp"

namespace weft::tree {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = fs::path(WEFT_SOURCE_DIR) / "src";

const std::map<std::string, std::string> kBannedWords = {
    {"omp\\s+parallel",
     "parallel loops run on core/workers.hpp, with piece borders that do not depend on the machine"},
    {"thread_local",
     "ranks are threads of one process: what a rank's code may use is handed to it in its Lane"},
};

std::string all(const Findings& findings) {
  std::string text;
  for (const auto& finding : findings) text += finding + "\n";
  return text;
}

IncludeRule rule_of_the_tree(Findings& findings) {
  std::ifstream in(fs::path(WEFT_SOURCE_DIR) / "tests/tree/include_rule.txt");
  std::ostringstream text;
  text << in.rdbuf();
  return parse_include_rule(text.str(), findings);
}

TEST(Tree, IncludesPointDownOnly) {
  Findings findings;
  const IncludeRule rule = rule_of_the_tree(findings);
  ASSERT_EQ(all(findings), "");
  ASSERT_GE(rule.order.size(), 10U);
  EXPECT_EQ(all(check_includes(kSource, rule)), "");
  EXPECT_EQ(all(check_rule_is_used(kSource, rule)), "");
}

TEST(Tree, NoBannedWords) {
  EXPECT_EQ(all(check_words(kSource, kBannedWords)), "");
}

TEST(Tree, SourcesAreShort) {
  EXPECT_EQ(all(check_length(kSource, 700)), "");
}

// A tree of a few files in a temporary folder.
class PlantedTree : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("weft_tree_test_" + std::to_string(getpid()));
    fs::remove_all(root_);
    plant("core/tensor.hpp", "#pragma once\n");
    plant("nn/linear.hpp", "#pragma once\n#include \"core/tensor.hpp\"\n#include <vector>\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void plant(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::string includes() {
    Findings findings;
    const IncludeRule rule = parse_include_rule("core:\nnn: core  # and no more\n", findings);
    EXPECT_EQ(all(findings), "");
    return all(check_includes(root_, rule));
  }

  fs::path root_;
};

TEST_F(PlantedTree, SoundTreePasses) {
  EXPECT_EQ(includes(), "");
}

TEST_F(PlantedTree, UpwardIncludeIsNamedWithFileLineAndRule) {
  plant("core/bad.cpp", "// first line\n  #  include \"nn/linear.hpp\"\n");
  EXPECT_EQ(includes(),
            "core/bad.cpp:2: core must not include \"nn/linear.hpp\": core may include nothing\n");
}

TEST_F(PlantedTree, EntryThatNobodyUsesIsNamed) {
  Findings findings;
  const IncludeRule rule = parse_include_rule("core:\nops: core\nnn: core ops\n", findings);
  EXPECT_EQ(all(check_rule_is_used(root_, rule)),
            "include rule: no file of nn includes one of ops: take the entry out\n");
}

TEST_F(PlantedTree, FolderWithoutARowIsNamed) {
  plant("extra/x.cpp", "#include \"core/tensor.hpp\"\n");
  EXPECT_EQ(includes(), "extra/x.cpp:1: folder extra has no row in the include rule\n");
}

TEST_F(PlantedTree, RelativeAndMissingFilesAreNamed) {
  plant("nn/a.cpp",
        "#include \"linear.hpp\"\n#include \"nn/../core/tensor.hpp\"\n#include \"core/gone.hpp\"\n");
  EXPECT_EQ(includes(),
            "nn/a.cpp:1: include \"linear.hpp\" as \"folder/file\"\n"
            "nn/a.cpp:2: include \"nn/../core/tensor.hpp\" as \"folder/file\"\n"
            "nn/a.cpp:3: there is no \"core/gone.hpp\"\n");
}

TEST_F(PlantedTree, SlowLibrariesStayOutOfHeaders) {
  plant("nn/a.hpp", "#include <nlohmann/json.hpp>\n");
  plant("nn/a.cpp", "#include <nlohmann/json.hpp>\n");
  EXPECT_EQ(includes(), "nn/a.hpp:1: <nlohmann/json.hpp> is slow to compile: only in .cpp files\n");
}

TEST_F(PlantedTree, BannedWordsCountInCodeOnly) {
  plant("core/a.cpp",
        "// thread_local is not for us\n"
        "const char* kText = \"thread_local\";\n"
        "/* #pragma omp parallel\n"
        "   thread_local */ int ok = 1'000;\n"
        "static thread_local int state;\n"
        "#pragma omp  parallel for\n");
  const std::string found = all(check_words(root_, kBannedWords));
  EXPECT_NE(found.find("core/a.cpp:5: "), std::string::npos) << found;
  EXPECT_NE(found.find("core/a.cpp:6: "), std::string::npos) << found;
  EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 2) << found;
}

TEST_F(PlantedTree, LongFilesAreNamed) {
  plant("core/long.cpp", "1\n2\n3\n4");
  EXPECT_EQ(all(check_length(root_, 4)), "");
  EXPECT_EQ(all(check_length(root_, 3)), "core/long.cpp:4: 4 lines; a source has at most 3\n");
}

TEST(IncludeRule, RowsNameOnlyRowsAboveThem) {
  Findings findings;
  parse_include_rule("core: nn\nnn: core\nnn:\nnonsense\n", findings);
  EXPECT_EQ(all(findings),
            "include rule:1: core names nn, which has no row above it\n"
            "include rule:3: nn has two rows\n"
            "include rule:4: expected \"folder: folder folder ...\"\n");
}

TEST(CodeOnly, BlanksCommentsAndLiterals) {
  EXPECT_EQ(code_only("a // b\nc"), "a     \nc");
  EXPECT_EQ(code_only("a /* b\n */ c"), "a     \n    c");
  EXPECT_EQ(code_only("f(\"x\\\"y\", 'q') + 1'0;"), "f(      ,    ) + 1'0;");
  EXPECT_EQ(code_only("R\"(a\"b)\" z"), "         z");
}

}  // namespace
}  // namespace weft::tree
