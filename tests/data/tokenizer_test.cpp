#include "data/tokenizer.hpp"

#include <nlohmann/json.hpp>
#include <random>

#include "data/byte_level.hpp"
#include "data/splitter.hpp"
#include "data/support.hpp"

namespace weft {
namespace {

using nlohmann::json;
using test::golden;
using test::holds;
using test::message_of;
using test::slurp;
using test::spill;
using test::TempDir;

using Ids = std::vector<std::int32_t>;

// Ids, tokens and text of 80 strings, and the text of 27 id lists, as Hugging Face tokenizers gives them.
class GoldenTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, EncodesAndDecodesExactly) {
  const auto folder = golden(std::string("tokenizers/") + GetParam());
  const Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  const json reference = json::parse(slurp(folder / "encodings.json"));
  ASSERT_EQ(reference["encode"].size(), 80u);
  for (const json& c : reference["encode"]) {
    const auto text = c["text"].get<std::string>();
    const Ids ids = tokenizer.encode(text);
    EXPECT_EQ(ids, c["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer.encode(text, true), c["ids_with_special"].get<Ids>()) << text;
    std::vector<std::string> tokens;
    for (const std::int32_t id : ids) tokens.push_back(tokenizer.token_spelling(id));
    EXPECT_EQ(tokens, c["tokens"].get<std::vector<std::string>>()) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
    EXPECT_EQ(tokenizer.decode(ids), c["decoded"].get<std::string>()) << text;
    EXPECT_EQ(tokenizer.decode(ids, true), c["decoded_skip_special"].get<std::string>()) << text;
  }
  ASSERT_EQ(reference["decode"].size(), 27u);
  for (const json& c : reference["decode"]) {
    const Ids ids = c["ids"].get<Ids>();
    EXPECT_EQ(utf8_lossy(tokenizer.decode(ids)), c["decoded"].get<std::string>());
    EXPECT_EQ(utf8_lossy(tokenizer.decode(ids, true)), c["decoded_skip_special"].get<std::string>());
  }
}

TEST_P(GoldenTokenizer, WritesAFileThatMeansTheSame) {
  const auto folder = golden(std::string("tokenizers/") + GetParam());
  const Tokenizer first = Tokenizer::load(folder);
  const json ours = json::parse(first.to_json()), theirs = json::parse(slurp(folder / "tokenizer.json"));
  for (const auto& [field, value] : theirs.items()) EXPECT_TRUE(ours[field] == value) << field;
  EXPECT_EQ(ours.size(), theirs.size());
  const TempDir dir;
  first.save(dir / "tokenizer.json");
  const Tokenizer second = Tokenizer::load(dir.path());
  const std::string text = "The cat's 12 345 hats\n\n  <|endoftext|> na\xC3\xAFve";
  EXPECT_EQ(second.encode(text, true), first.encode(text, true));
}
INSTANTIATE_TEST_SUITE_P(Files, GoldenTokenizer, testing::Values("gpt2_style", "llama3_style"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Tokenizer, ReadsVocabAndMerges) {
  const auto folder = golden("tokenizers/gpt2_style");
  const std::vector<std::string> specials{"<|endoftext|>"};
  const Tokenizer two =
      Tokenizer::load_vocab_and_merges(folder / "vocab.json", folder / "merges.txt", specials);
  const Tokenizer one = Tokenizer::load(folder / "tokenizer.json");
  EXPECT_EQ(two.vocab_size(), one.vocab_size());
  const json reference = json::parse(slurp(folder / "encodings.json"));
  for (const json& c : reference["encode"])
    EXPECT_EQ(two.encode(c["text"].get<std::string>()), c["ids"].get<Ids>());
}

TEST(Splitter, CutsOddWhitespaceAsGpt2Does) {
  const Splitter splitter{std::string(kGpt2Pattern)};
  Splitter::Scratch scratch(splitter);
  const std::vector<std::vector<std::string>> cases{
      {"I", "'ll", " ", " can", "'t", "\t", "X"},
      {"a", " ", " b"},
      {"a", "\n\n", " b"},
      {"a", "\u00A0", "b"},
      {"  "},
      {"don", "\u2019", "t"},
      {"x", "=", "10\u00B2", " 3", ",", "4"},
      {"It", "'", "S", " we", "'", "Re"},
      {"end", " \n"},
  };
  for (const auto& pieces : cases) {
    std::string text;
    for (const auto& piece : pieces) text += piece;
    std::vector<std::string_view> found;
    splitter.split(text, found, scratch);
    EXPECT_EQ(std::vector<std::string>(found.begin(), found.end()), pieces) << text;
  }
}

TEST(Splitter, SpacesAreUnicodesWhiteSpace) {
  const Splitter splitter{std::string(kGpt2Pattern)};
  Splitter::Scratch scratch(splitter);
  // U+180E is no white space: it goes with the punctuation. U+0085 and U+3000 are.
  const std::vector<std::pair<std::string, std::size_t>> cases{
      {"\u180E!", 1}, {"\u0085!", 2}, {"\u3000!", 2}};
  for (const auto& [text, pieces] : cases) {
    std::vector<std::string_view> found;
    splitter.split(text, found, scratch);
    EXPECT_EQ(found.size(), pieces) << text;
  }
}

TEST(Splitter, BytesThatAreNotUtf8ArePiecesOfTheirOwn) {
  const Splitter splitter{std::string(kGpt2Pattern)};
  Splitter::Scratch scratch(splitter);
  std::vector<std::string_view> found;
  splitter.split("ab\xFF\xFE cd\xE2\x80", found, scratch);
  EXPECT_EQ(found, (std::vector<std::string_view>{"ab", "\xFF\xFE", " cd", "\xE2\x80"}));
}

TEST(Splitter, RefusesPatternsThatMeanSomethingElseHere) {
  for (const char* pattern : {"(", "[a[bc]]", "[a&&b]", "\\h+", "[\\S]"})
    EXPECT_TRUE(holds(message_of<ConfigError>([&] { Splitter bad{pattern}; }), {"pattern", pattern}));
}

TEST(Splitter, PatternsWithGapsAndEmptyMatchesLoseNothing) {
  const Splitter splitter{"x*"};
  Splitter::Scratch scratch(splitter);
  std::vector<std::string_view> found;
  splitter.split("aaxx\u00E9xb", found, scratch);
  EXPECT_EQ(found, (std::vector<std::string_view>{"aa", "xx", "\u00E9", "x", "b"}));
}

TEST(Tokenizer, RandomBytesSurviveTheRoundTrip) {
  const Tokenizer tokenizer = Tokenizer::load(golden("tokenizers/gpt2_style"));
  Encoder encoder(tokenizer);
  std::mt19937 random(7);
  // Half of the strings are any bytes, half prefer spaces, letters, quotes and UTF-8 fragments.
  const std::string likely = " \n\t\r'stelSab0129.,<|endoftext|>\xC2\xA0\xE2\x80\x99\xF0\x9F\x98\x80";
  for (int i = 0; i < 10'000; ++i) {
    std::string text(random() % 60, '\0');
    for (char& c : text)
      c = i % 2 == 0 ? static_cast<char>(random() & 0xff) : likely[random() % likely.size()];
    Ids ids;
    encoder.encode(text, ids);
    ASSERT_EQ(tokenizer.decode(ids), text) << i;
  }
}

TEST(Tokenizer, DecodesEveryIdToItsBytes) {
  const Tokenizer tokenizer = Tokenizer::load(golden("tokenizers/gpt2_style"));
  const json file = json::parse(slurp(golden("tokenizers/gpt2_style/tokenizer.json")));
  ASSERT_EQ(tokenizer.vocab_size(), 513);
  EXPECT_EQ(file["model"]["vocab"].size(), 512u);
  std::size_t single_bytes = 0;
  for (const auto& [spelling, value] : file["model"]["vocab"].items()) {
    const auto id = value.get<std::int32_t>();
    EXPECT_EQ(tokenizer.decode(Ids{id}), byte_level_bytes(spelling).value());
    EXPECT_EQ(tokenizer.token_spelling(id), spelling);
    single_bytes += tokenizer.token_bytes(id).size() == 1 ? 1 : 0;
  }
  EXPECT_EQ(single_bytes, 256u);
  EXPECT_EQ(tokenizer.decode(Ids{512}), "<|endoftext|>");
  EXPECT_EQ(tokenizer.decode(Ids{512}, true), "");
  for (const char* text : {" .", " ,", " n't", " !=", "Hello , world !"})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  for (const std::int32_t id : {-1, 513, 1 << 30})
    EXPECT_TRUE(holds(message_of<Error>([&] { tokenizer.decode(Ids{id}); }), {std::to_string(id), "513"}));
}

TEST(Tokenizer, LongWordsMergeAsShortOnesDo) {
  // The two merge loops must agree: split a long word where the short loop can follow.
  const Tokenizer tokenizer = Tokenizer::load(golden("tokenizers/gpt2_style"));
  std::mt19937 random(3);
  std::string letters(400, 'a');
  for (char& c : letters) c = "theinarou"[random() % 9];
  const Ids whole = tokenizer.encode(letters);
  EXPECT_EQ(tokenizer.decode(whole), letters);
  // Pairwise greedy merging, done naively.
  Ids naive;
  for (const char c : letters) naive.push_back(*tokenizer.find(std::string_view(&c, 1)));
  for (const auto& [left, right] : tokenizer.model().merges) {
    const std::int32_t joined =
        *tokenizer.find(std::string(tokenizer.token_bytes(left)) + std::string(tokenizer.token_bytes(right)));
    for (std::size_t i = 0; i + 1 < naive.size(); ++i)
      if (naive[i] == left && naive[i + 1] == right) {
        naive[i] = joined;
        naive.erase(naive.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
  }
  EXPECT_EQ(whole, naive);
}

TEST(Tokenizer, AnEncoderForgetsWithoutConsequence) {
  const Tokenizer tokenizer = Tokenizer::load(golden("tokenizers/gpt2_style"));
  Encoder encoder(tokenizer);
  Ids ids, again;
  for (int i = 0; i < 140'000; ++i) {
    ids.clear();
    encoder.encode(fmt::format("w{}x", i), ids);
    if (i % 10'000 != 7) continue;
    EXPECT_EQ(ids, tokenizer.encode(fmt::format("w{}x", i)));
  }
  again.clear();
  encoder.encode("w1x the", again);
  EXPECT_EQ(again, tokenizer.encode("w1x the"));
}

TEST(Tokenizer, FindsTheEndOfDocument) {
  EXPECT_EQ(Tokenizer::load(golden("tokenizers/gpt2_style")).end_of_document(), 512);
  EXPECT_EQ(Tokenizer::load(golden("tokenizers/llama3_style")).end_of_document(), 577);
}

// A changed copy of a sound file must be refused with a message that names the field.
TEST(Tokenizer, RefusesWhatItDoesNotDo) {
  const json sound = json::parse(slurp(golden("tokenizers/llama3_style/tokenizer.json")));
  const auto refusal = [&](const char* pointer, const json& value) {
    json changed = sound;
    changed[json::json_pointer(pointer)] = value;
    return message_of<ConfigError>([&] { Tokenizer::from_json(changed.dump(), "t.json"); });
  };
  const std::vector<std::tuple<const char*, json, std::string>> cases{
      {"/normalizer", {{"type", "NFC"}}, "normalizer"},
      {"/truncation", {{"max_length", 8}}, "truncation"},
      {"/padding", {{"pad_id", 8}}, "padding"},
      {"/model/type", "Unigram", "model.type"},
      {"/model/type", "WordPiece", "WordPiece"},
      {"/model/byte_fallback", true, "model.byte_fallback"},
      {"/model/dropout", 0.1, "model.dropout"},
      {"/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"/model/vocab/zzz", -4, "model.vocab[\"zzz\"]"},
      {"/model/vocab/zzz", 3, "id 3"},
      {"/model/vocab/zzz", 1.5, "model.vocab[\"zzz\"]"},
      {"/model/vocab/zzz", 4'000'000'000, "model.vocab[\"zzz\"]"},
      {"/model/merges/0", "a", "model.merges[0]"},
      {"/model/merges/0", {"a", "no such"}, "model.merges[0]"},
      {"/model/merges/0", {"!", "\""}, "merge 0"},
      {"/model/merges", 3, "model.merges"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer"},
      {"/pre_tokenizer/type", "Whitespace", "pre_tokenizer"},
      {"/pre_tokenizer/pretokenizers/0/type", "Digits", "pre_tokenizer.pretokenizers[0]"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "pre_tokenizer.pretokenizers[0].behavior"},
      {"/pre_tokenizer/pretokenizers/0/invert", true, "invert"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "pattern"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(", "pattern ("},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, "add_prefix_space"},
      {"/decoder", {{"type", "Metaspace"}}, "decoder"},
      {"/post_processor", {{"type", "BertProcessing"}}, "post_processor"},
      {"/added_tokens/0/lstrip", true, "added_tokens[0].lstrip"},
      {"/added_tokens/0/single_word", true, "added_tokens[0].single_word"},
      {"/added_tokens/0/id", "x", "added_tokens[0].id"},
      {"/added_tokens/0/id", 5, "id 5"},
      {"/added_tokens/1/id", 576, "576"},
  };
  for (const auto& [pointer, value, named] : cases)
    EXPECT_TRUE(holds(refusal(pointer, value), {"t.json", named}) || holds(refusal(pointer, value), {named}))
        << pointer << " " << value;
  EXPECT_TRUE(
      holds(message_of<ConfigError>([] { Tokenizer::from_json("{\"a\": ", "t.json"); }), {"t.json", "JSON"}));
  EXPECT_TRUE(
      holds(message_of<ConfigError>([] { Tokenizer::from_json("[]", "t.json"); }), {"t.json", "object"}));
  EXPECT_TRUE(
      holds(message_of<ConfigError>([] { Tokenizer::load("/nowhere/t.json"); }), {"/nowhere/t.json"}));
  const TempDir dir;
  EXPECT_TRUE(holds(message_of<ConfigError>([&] { Tokenizer::load(dir.path()); }),
                    {dir.path().string(), "merges.txt"}));
}

TEST(Tokenizer, ReadsBothSpellingsOfMerges) {
  json file = json::parse(slurp(golden("tokenizers/gpt2_style/tokenizer.json")));
  const Tokenizer pairs = Tokenizer::from_json(file.dump(), "pairs");
  for (json& merge : file["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const Tokenizer joined = Tokenizer::from_json(file.dump(), "joined");
  EXPECT_EQ(pairs.model().merges, joined.model().merges);
}

TEST(Tokenizer, PutsASpaceBeforeTextWhenAsked) {
  json file = json::parse(slurp(golden("tokenizers/gpt2_style/tokenizer.json")));
  const Tokenizer plain = Tokenizer::from_json(file.dump(), "plain");
  file["pre_tokenizer"]["add_prefix_space"] = true;
  const Tokenizer spaced = Tokenizer::from_json(file.dump(), "spaced");
  EXPECT_EQ(spaced.encode("the"), plain.encode(" the"));
  EXPECT_EQ(spaced.encode(" the"), plain.encode(" the"));
  EXPECT_EQ(spaced.encode(""), Ids{});
}

TEST(Tokenizer, TheLongestAddedTokenWins) {
  const Tokenizer tokenizer(TokenizerModel{.tokens = {"<", ">", "x"},
                                           .added = {{3, "<x"}, {4, "<x>"}, {5, "x>"}},
                                           .patterns = {std::string(kGpt2Pattern)}});
  EXPECT_EQ(tokenizer.encode("<x><x<xx>>"), (Ids{4, 3, 3, 5, 1}));
}

TEST(Tokenizer, SaysWhichByteItLacks) {
  const Tokenizer tokenizer(TokenizerModel{.tokens = {"a", "b", "ab"}, .merges = {{0, 1}}});
  EXPECT_EQ(tokenizer.encode("abba"), (Ids{2, 1, 0}));
  EXPECT_TRUE(holds(message_of<Error>([&] { tokenizer.encode("abc"); }), {"0x63", "abc"}));
}

TEST(Utf8, FindsTheValidPart) {
  const std::vector<std::pair<std::string, std::size_t>> cases{{"", 0},
                                                               {"plain ascii of some length", 26},
                                                               {"12345678\xFF", 8},
                                                               {"\xC3\xA9", 2},
                                                               {"\xC0\x80", 0},
                                                               {"\xED\xA0\x80", 0},
                                                               {"\xF4\x8F\xBF\xBF", 4},
                                                               {"\xF4\x90\x80\x80", 0},
                                                               {"a\xE2\x82", 1},
                                                               {"\xE0\x9F\xBF", 0}};
  for (const auto& [text, valid] : cases) EXPECT_EQ(utf8_valid_prefix(text), valid) << text;
  EXPECT_EQ(utf8_lossy("a\xE2\x82z\xFF\xFFq"), "a\uFFFDz\uFFFD\uFFFDq");
}

}  // namespace
}  // namespace weft
