#include "data/bpe_trainer.hpp"

#include "data/support.hpp"

namespace weft {
namespace {

using test::golden;
using test::holds;
using test::message_of;
using test::slurp;
using test::spill;
using test::TempDir;

// Hugging Face's trainer made this file from the same text.
TEST(BpeTrainer, EqualsHuggingFacesFileByteForByte) {
  const std::vector<std::filesystem::path> files{golden("tokenizers/corpus.txt")};
  BpeTrainOptions options;
  options.vocab_size = 513;
  const std::string ours = train_bpe(files, options).to_json();
  std::string theirs = slurp(golden("tokenizers/gpt2_style/tokenizer.json"));
  while (!theirs.empty() && theirs.back() == '\n') theirs.pop_back();
  EXPECT_TRUE(ours == theirs + "\n");
}

TEST(BpeTrainer, TiesGoToTheSmallestPair) {
  BpeTrainer trainer;
  trainer.add("cd");
  trainer.add("ab");
  trainer.add("zz");
  trainer.add("zz");
  BpeTrainOptions options;
  options.vocab_size = 256 + 3 + 1;
  const Tokenizer tokenizer = trainer.train(options);
  EXPECT_EQ(tokenizer.token_bytes(256), "zz");
  EXPECT_EQ(tokenizer.token_bytes(257), "ab");
  EXPECT_EQ(tokenizer.token_bytes(258), "cd");
  EXPECT_EQ(tokenizer.token_bytes(259), "<|endoftext|>");
}

TEST(BpeTrainer, OverlappingPairsAreCountedAndMergedFromTheLeft) {
  BpeTrainer trainer;
  trainer.add("aaaaa");
  BpeTrainOptions options;
  options.vocab_size = 258;
  options.special_tokens.clear();
  const Tokenizer tokenizer = trainer.train(options);
  EXPECT_EQ(tokenizer.token_bytes(256), "aa");
  EXPECT_EQ(tokenizer.token_bytes(257), "aaa");  // "aa aa a": both pairs once, (aa, a) is the smaller
  EXPECT_EQ(tokenizer.encode("aaaaa"), (std::vector<std::int32_t>{256, 257}));
}

TEST(BpeTrainer, SmallTextGivesWhatItHas) {
  BpeTrainer trainer;
  trainer.add("abab ab");
  BpeTrainOptions options;
  options.vocab_size = 1000;
  options.min_frequency = 2;
  EXPECT_EQ(trainer.train(options).vocab_size(), 256 + 1 + 1);
}

TEST(BpeTrainer, FilesAreReadInPiecesWithoutChangingTheWords) {
  // Two blocks, with lines, blank lines and indented lines at their borders.
  std::string text;
  for (int i = 0; text.size() < 1'700'000; ++i)
    text += fmt::format("line {} of  the\ttext\n{}", i,
                        i % 3 == 0   ? "\n"
                        : i % 5 == 0 ? "  indented it's\n"
                                     : "");
  const TempDir dir;
  spill(dir / "t.txt", text);
  BpeTrainer whole, pieces;
  whole.add(text);
  pieces.add_file(dir / "t.txt");
  BpeTrainOptions options;
  options.vocab_size = 400;
  EXPECT_EQ(whole.train(options).to_json(), pieces.train(options).to_json());
}

TEST(BpeTrainer, ReadsTheTextOfJsonLines) {
  const TempDir dir;
  spill(dir / "t.jsonl", "{\"text\": \"low lower\"}\n{\"text\": \"lowest\", \"id\": 3}\n");
  BpeTrainer lines, texts;
  lines.add_file(dir / "t.jsonl");
  texts.add("low lower");
  texts.add("lowest");
  BpeTrainOptions options;
  options.vocab_size = 265;
  EXPECT_EQ(lines.train(options).to_json(), texts.train(options).to_json());
}

TEST(BpeTrainer, RefusesImpossibleSizes) {
  BpeTrainer trainer;
  trainer.add("aa aa");
  BpeTrainOptions options;
  options.vocab_size = 256;
  EXPECT_TRUE(holds(message_of<ConfigError>([&] { trainer.train(options); }), {"--vocab-size 256", "257"}));
  options.vocab_size = 300;
  options.special_tokens = {"<s>", "<s>"};
  EXPECT_TRUE(holds(message_of<ConfigError>([&] { trainer.train(options); }), {"twice"}));
  options.special_tokens = {"aa"};
  EXPECT_TRUE(holds(message_of<ConfigError>([&] { trainer.train(options); }), {"\"aa\""}));
  const std::vector<std::filesystem::path> none{"/nowhere/t.txt"};
  EXPECT_TRUE(holds(message_of<ConfigError>([&] { train_bpe(none, {}); }), {"/nowhere/t.txt"}));
}

}  // namespace
}  // namespace weft
