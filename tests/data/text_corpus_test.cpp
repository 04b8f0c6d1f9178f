#include "data/text_corpus.hpp"

#include "data/indexed_dataset.hpp"
#include "data/support.hpp"

namespace weft {
namespace {

using test::golden;
using test::holds;
using test::message_of;
using test::slurp;
using test::spill;
using test::TempDir;

class Corpus : public testing::Test {
 protected:
  // The documents of a file, decoded again.
  std::vector<std::string> documents(const std::string& name, std::string_view bytes,
                                     BuildOptions options = {}) {
    spill(dir_ / name, bytes);
    const std::vector<std::filesystem::path> inputs{dir_ / name};
    const BuildReport report = build_dataset(inputs, tokenizer_, dir_ / "out", options);
    const IndexedDataset data(dir_ / "out");
    EXPECT_EQ(report.documents, data.documents());
    EXPECT_EQ(report.tokens, data.tokens());
    EXPECT_EQ(std::ssize(data.document_table()), data.documents() + 1);
    std::vector<std::string> texts;
    for (std::int64_t d = 0; d < data.documents(); ++d) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(data.lengths()[static_cast<std::size_t>(d)]));
      data.read(d, 0, ids);
      texts.push_back(tokenizer_.decode(ids));
    }
    return texts;
  }

  TempDir dir_;
  Tokenizer tokenizer_ = Tokenizer::load(golden("tokenizers/gpt2_style"));
};

using Texts = std::vector<std::string>;

TEST_F(Corpus, PlainTextEndsDocumentsAtBlankLines) {
  EXPECT_EQ(documents("t.txt", "one\ntwo\n\nthree\n"), (Texts{"one\ntwo", "three"}));
  EXPECT_EQ(documents("t.txt", "\n\n  one\n \t\r\n\n\ntwo"), (Texts{"  one", "two"}));
  EXPECT_EQ(documents("t.txt", "one\r\ntwo\r\n\r\nthree\r\n"), (Texts{"one\r\ntwo", "three"}));
  EXPECT_EQ(documents("t.txt", "no blank line\nat all\n"), (Texts{"no blank line\nat all"}));
  EXPECT_EQ(documents("t.txt", ""), Texts{});
}

TEST_F(Corpus, BytesThatAreNotUtf8StayAsTheyAre) {
  EXPECT_EQ(documents("t.txt", "a\xFF\xC3(\n\n\xE2\x82 b"), (Texts{"a\xFF\xC3(", "\xE2\x82 b"}));
}

TEST_F(Corpus, JsonLinesAreDocuments) {
  EXPECT_EQ(documents("t.jsonl",
                      "{\"text\": \"a\\nb\\u00e9\"}\n\n{\"id\": 1, \"text\": \"\"}\n{\"text\": \"c\\n\"}"),
            (Texts{"a\nb\u00E9", "", "c\n"}));
}

TEST_F(Corpus, EndOfDocumentFollowsEachThatIsNotEmpty) {
  const BuildOptions options{.append_eod = true};
  EXPECT_EQ(documents("t.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\"}\n{\"text\": \"b\"}\n", options),
            (Texts{"a<|endoftext|>", "", "b<|endoftext|>"}));
}

TEST_F(Corpus, FaultsNameFileAndLine) {
  const auto refusal = [&](std::string_view bytes) {
    spill(dir_ / "t.jsonl", bytes);
    const std::vector<std::filesystem::path> inputs{dir_ / "t.jsonl"};
    return message_of<ConfigError>([&] { build_dataset(inputs, tokenizer_, dir_ / "bad", {.workers = 3}); });
  };
  const std::string good = "{\"text\": \"a\"}\n";
  EXPECT_TRUE(holds(refusal(good + "\n{\"text\": \"a\n"), {"t.jsonl line 3", "JSON"}));
  EXPECT_TRUE(holds(refusal(good + "[1]\n"), {"t.jsonl line 2", "object"}));
  EXPECT_TRUE(holds(refusal(good + "{\"txt\": \"a\"}\n"), {"t.jsonl line 2", "\"text\""}));
  EXPECT_TRUE(holds(refusal(good + "{\"text\": 3}\n"), {"t.jsonl line 2", "no string"}));
  EXPECT_TRUE(holds(refusal(good + "{\"text\": \"\xFF\"}\n"), {"t.jsonl line 2", "UTF-8"}));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "bad.bin"));
  EXPECT_TRUE(test::unfinished_files(dir_.path()).empty());
  const std::vector<std::filesystem::path> missing{dir_ / "none.txt"};
  EXPECT_TRUE(holds(message_of<ConfigError>([&] { build_dataset(missing, tokenizer_, dir_ / "bad"); }),
                    {"none.txt"}));
  EXPECT_TRUE(
      holds(message_of<ConfigError>([&] { build_dataset({}, tokenizer_, dir_ / "bad"); }), {"--input"}));
  EXPECT_TRUE(holds(
      message_of<ConfigError>([&] { build_dataset(missing, tokenizer_, dir_ / "bad", {.workers = 0}); }),
      {"--workers 0"}));
}

TEST_F(Corpus, AnyNumberOfWorkersGivesTheSameFiles) {
  std::string text;
  for (int i = 0; text.size() < 1'300'000; ++i)
    text += fmt::format("document {} it's {}\n\n", i, i * 7919 % 10007);
  spill(dir_ / "a.txt", text);
  spill(dir_ / "b.jsonl", "{\"text\": \"last\"}\n");
  const std::vector<std::filesystem::path> inputs{dir_ / "a.txt", dir_ / "b.jsonl"};
  for (const int workers : {1, 2, 5})
    build_dataset(inputs, tokenizer_, dir_ / fmt::format("w{}", workers),
                  {.append_eod = true, .workers = workers});
  for (const char* other : {"w2", "w5"})
    for (const char* kind : {".bin", ".idx"})
      EXPECT_TRUE(slurp(dir_ / (std::string("w1") + kind)) == slurp(dir_ / (std::string(other) + kind)))
          << other << kind;
  const MemoryTokens memory = tokenize_files(inputs, tokenizer_, {.append_eod = true, .workers = 2});
  const IndexedDataset file(dir_ / "w1");
  EXPECT_TRUE(std::ranges::equal(memory.lengths(), file.lengths()));
  EXPECT_EQ(read_all(file), std::vector<std::int32_t>(memory.all().begin(), memory.all().end()));
}

TEST_F(Corpus, NeedsAnEndOfDocumentToAppend) {
  const Tokenizer bare(TokenizerModel{.tokens = {"a"}});
  spill(dir_ / "t.txt", "a");
  const std::vector<std::filesystem::path> inputs{dir_ / "t.txt"};
  EXPECT_TRUE(
      holds(message_of<ConfigError>([&] { build_dataset(inputs, bare, dir_ / "o", {.append_eod = true}); }),
            {"--append-eod"}));
}

}  // namespace
}  // namespace weft
