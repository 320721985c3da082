// Which file of a folder is its tokenizer, and the kinds of files that are no tokenizer.json: SentencePiece models, tiktoken
// files, vocab.json with merges.txt.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/tokenizer.h"
#include "data/tokenizer_check.h"
#include "data/tokenizer_model.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

using Json = nlohmann::json;
const std::string folder = KEEL_TEST_DIR "/golden/tokenizer_corpus/";

std::string base64(std::string_view bytes) {
    constexpr const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t three = 0;
        for (std::size_t k = 0; k < 3; ++k) three = three << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
        for (std::size_t k = 0; k < 4; ++k) out += i * 8 + k * 6 < bytes.size() * 8 ? digits[three >> (18 - 6 * k) & 63] : '=';
        while (out.size() % 4 != 0) out += '=';
    }
    return out;
}

// All bytes by their values, then these tokens.
std::string tiktoken(const std::vector<std::string>& tokens = {"ab", "abc"}) {
    std::string out;
    for (int b = 0; b < 256; ++b) out += base64(std::string(1, static_cast<char>(b))) + " " + std::to_string(b) + "\n";
    for (std::size_t i = 0; i < tokens.size(); ++i) out += base64(tokens[i]) + " " + std::to_string(256 + i) + "\n";
    return out;
}

const std::string config = R"({"pat_str": "\\w+|\\W", "added_tokens_decoder": {"300": {"content": "<|end|>", "special": true}}, "eos_token": "<|end|>"})";

TEST(TokenizerFiles, AFolderIsItsTokenizerJsonElseItsModelElseItsVocabulary) {
    const TempFolder temp;
    EXPECT_FALSE(Tokenizer::found_in(temp.path()));
    temp.write("vocab.json", read_file(folder + "vocab_merges/vocab.json"));
    EXPECT_FALSE(Tokenizer::found_in(temp.path()));
    temp.write("merges.txt", read_file(folder + "vocab_merges/merges.txt"));
    EXPECT_EQ(Tokenizer::load(temp.path()).model().format, "vocab.json and merges.txt, GPT2Tokenizer");
    temp.write("tokenizer.model", read_file(folder + "spm_llama.model"));
    EXPECT_EQ(Tokenizer::load(temp.path()).description(), "BPE with byte fallback, from SentencePiece tokenizer.model");
    temp.write("tokenizer.json", read_file(folder + "unigram.json"));
    EXPECT_EQ(Tokenizer::load(temp.path()).description(), "Unigram, from tokenizer.json");
    EXPECT_TRUE(Tokenizer::found_in(temp.path()));
    EXPECT_EQ(Tokenizer::load(temp / "tokenizer.model").model().format, "SentencePiece tokenizer.model");
    EXPECT_EQ(Tokenizer::load(temp / "merges.txt").model().kind, TokenizerModel::Kind::byte_bpe);
}

TEST(TokenizerFiles, ATiktokenFileTakesItsPatternFromBesideItOrIsRefused) {
    const TempFolder temp;
    temp.write("tokenizer.model", tiktoken());
    EXPECT_SAYS(message_of([&] { Tokenizer::load(temp.path()); }), "pat_str");
    temp.write("tokenizer_config.json", config);
    const Tokenizer t = Tokenizer::load(temp.path());
    EXPECT_EQ(t.encode("abc abx<|end|>"), (std::vector<std::int32_t>{257, 32, 256, 'x', 300}));
    EXPECT_EQ(t.eos_id(), 300);
    EXPECT_EQ(t.decode(t.encode("abc abx<|end|>"), true), "abc abx");
    EXPECT_EQ(t.to_json(), "");
    EXPECT_EQ(t.file().name, "tokenizer.model");
}

// Ranks decide, also between two ways to make one token: the pair whose joined bytes have the lowest rank, leftmost on ties.
TEST(TokenizerFiles, TiktokenJoinsThePairOfTheLowestRank) {
    const TempFolder temp;
    temp.write("tokenizer.model", tiktoken({"bc", "ab", "abcd"}));
    temp.write("tokenizer_config.json", config);
    const Tokenizer t = Tokenizer::load(temp.path());
    EXPECT_EQ(t.encode("abc"), (std::vector<std::int32_t>{'a', 256}));
    EXPECT_EQ(t.encode("abcd"), (std::vector<std::int32_t>{258}));  // a whole piece, which no merge makes
    EXPECT_EQ(t.encode("abcdx"), (std::vector<std::int32_t>{'a', 256, 'd', 'x'}));
}

TEST(TokenizerFiles, RefusesDamagedTiktokenFilesByLine) {
    const auto said = [](const std::string& file) { return message_of([&] { parse_tiktoken(file, "t.model"); }); };
    EXPECT_SAYS(said(tiktoken() + "YQ== x\n"), "line 259");
    EXPECT_SAYS(said(tiktoken() + "YR== 258\n"), "line 259");  // bits that no byte needs
    EXPECT_SAYS(said(tiktoken() + "eHl6 257\n"), "rank 257 occurs twice");
    EXPECT_SAYS(said(tiktoken() + "YWI= 258\n"), "occurs twice");
    EXPECT_SAYS(said(tiktoken() + "eHl6 260\n"), "no token has the rank 258");
    EXPECT_SAYS(said(tiktoken() + "eHl6 2000000000\n"), "far beyond");
    EXPECT_SAYS(said("YQ== 0\n"), "no token for the byte 0");
    EXPECT_SAYS(said("\n"), "holds no tokens");
    EXPECT_FALSE(looks_like_tiktoken("YQ== 0\nx\n"));
    EXPECT_FALSE(looks_like_tiktoken(""));
    EXPECT_TRUE(looks_like_tiktoken("YQ== 0\r\nYg== 1"));
}

// A published file is known by what it contains: here one with as many ranks as Llama-3's and three of its tokens.
TEST(TokenizerFiles, APublishedTiktokenFileIsKnownByItsContent) {
    std::string file;
    std::vector<std::string> tokens(128000);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = i < 256 ? std::string(1, static_cast<char>(i)) : "t" + std::to_string(i);
    tokens[9906] = "Hello", tokens[101798] = " Vi\u1ec7t", tokens[127539] = " soubor";
    for (std::size_t i = 0; i < tokens.size(); ++i) file += base64(tokens[i]) + " " + std::to_string(i) + "\n";
    const TempFolder temp;
    const Tokenizer t = Tokenizer::load(temp.write("tokenizer.model", file));
    EXPECT_EQ(cutting_in_words(t), "the Llama-3 pattern");
    EXPECT_EQ(t.vocab_size(), 128256);
    EXPECT_EQ(t.encode("<|begin_of_text|> Vi\u1ec7t soubor<|eot_id|>"), (std::vector<std::int32_t>{128000, 101798, 127539, 128009}));
    EXPECT_EQ(t.bos_id(), 128000);
    EXPECT_EQ(t.id("<|reserved_special_token_247|>"), 128255);
    file += base64("one more") + " 128000\n";
    EXPECT_SAYS(message_of([&] { Tokenizer::load(temp.write("tokenizer.model", file)); }), "keel does not know");
}

TEST(TokenizerFiles, VocabularyAndMergesAreReadAsTheClassBesideThemSays) {
    const TempFolder temp;
    temp.write("vocab.json", read_file(folder + "vocab_merges/vocab.json"));
    temp.write("merges.txt", read_file(folder + "vocab_merges/merges.txt"));
    const Tokenizer gpt2 = Tokenizer::load(temp.path());
    EXPECT_EQ(cutting_in_words(gpt2), "the GPT-2 pattern");
    EXPECT_EQ(gpt2.eos_id(), 0);
    EXPECT_EQ(Tokenizer::parse(gpt2.to_json(), "t.json").hash(), gpt2.hash());
    temp.write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|endoftext|>"})");
    temp.write("added_tokens.json", R"({"<|im_start|>": 560})");
    const Tokenizer qwen = Tokenizer::load(temp.path());
    EXPECT_EQ(cutting_in_words(qwen), "the Qwen pattern");
    EXPECT_EQ(qwen.encode("<|im_start|>"), std::vector<std::int32_t>{560});
    // A form that tokenizer.json alone can say is handed on as that file, the added tokens in it.
    temp.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true, "eos_token": "<|endoftext|>"})");
    const Tokenizer spaced = Tokenizer::load(temp.path());
    const Tokenizer::File handed_on = spaced.file();
    const TempFolder other;
    other.write(handed_on.name, handed_on.content);
    EXPECT_EQ(Tokenizer::load(other.path()).encode("a <|im_start|>b"), spaced.encode("a <|im_start|>b"));
    EXPECT_EQ(Tokenizer::load(other.path()).hash(), spaced.hash());
    temp.write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|endoftext|>"})");
    temp.write("added_tokens.json", R"({"<|im_start|>": 5})");
    EXPECT_SAYS(message_of([&] { Tokenizer::load(temp.path()); }), "belongs to");
    temp.write("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})");
    EXPECT_SAYS(message_of([&] { Tokenizer::load(temp.path()); }), "RobertaTokenizer");
}

// formats.md 3.4: the head of such a model.
TEST(TokenizerFiles, MergesThatAreNoTextAreRefusedWithTheirPlace) {
    const TempFolder temp;
    temp.write("vocab.json", read_file(folder + "vocab_merges/vocab.json"));
    temp.write("merges.txt", "#version: 0.2\nt h\nt\xff h\n");
    EXPECT_SAYS(message_of([&] { Tokenizer::load(temp.path()); }), "merges.txt, byte 19: this is not UTF-8");
}

TEST(TokenizerFiles, ASentencePieceModelBeginsWithUnknownControlsAndBytes) {
    const Tokenizer t = Tokenizer::load(folder + "spm_llama.model");
    const auto& tokens = t.model().tokens;
    EXPECT_EQ(tokens[0].text, "<unk>");
    EXPECT_EQ(t.model().unknown, 0);
    EXPECT_EQ(t.bos_id(), 1);
    EXPECT_EQ(t.eos_id(), 2);
    EXPECT_EQ(tokens[3].text, "<0x00>");
    EXPECT_TRUE(tokens[3].is_byte && tokens[258].is_byte && !tokens[259].is_byte);
    EXPECT_TRUE(t.is_special(1));
    EXPECT_EQ(t.id("</s>"), 2);
}

// P21: control symbols in text are text.
TEST(TokenizerFiles, SentencePieceNeverReadsControlSymbolsFromText) {
    const Tokenizer t = Tokenizer::load(folder + "spm_llama.model");
    const auto ids = t.encode("<s>");
    EXPECT_GT(ids.size(), 2u);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 0);
    EXPECT_EQ(t.decode(ids), "<s>");
    EXPECT_EQ(t.decode(std::vector<std::int32_t>{1, 2}), "");
    const auto line = t.encode("\n");  // the dummy prefix, then the byte
    ASSERT_EQ(line.size(), 2u);
    EXPECT_EQ(t.bytes(line[0]), " ");
    EXPECT_EQ(line[1], 3 + '\n');
    EXPECT_EQ(t.decode(t.encode("  two  spaces ")), "  two  spaces ");
}

TEST(TokenizerFiles, RefusesDamagedSentencePieceModels) {
    const std::string good = read_file(folder + "spm_llama.model");
    const auto said = [](const std::string& file) { return message_of([&] { parse_sentencepiece(file, "t.model"); }); };
    EXPECT_EQ(said(good), "");
    EXPECT_SAYS(said(""), "holds no pieces");
    EXPECT_SAYS(said("\x0a\x7f"), "past the end");
    EXPECT_SAYS(said("\x0a"), "cut off");
    EXPECT_SAYS(said("\x0b"), "unknown type of field");
    EXPECT_SAYS(said(std::string("\x02\x00", 2)), "field 0");
    EXPECT_SAYS(said(std::string(12, '\xff')), "does not end");
    EXPECT_SAYS(said("\x0a\x02\x0d\x01"), "cut off");                       // a piece whose score is
    EXPECT_SAYS(said("\x08\x01"), "another type");                          // pieces as a number
    EXPECT_SAYS(said(std::string("\x0a\x02\x0a\x00", 4)), "piece 0 is empty");
    EXPECT_SAYS(said("\x0a\x03\x0a\x01\xff"), "not valid UTF-8");
    EXPECT_SAYS(said("\x0a\x03\x0a\x01" "a"), "no piece is the unknown one");
    EXPECT_SAYS(said("\x0a\x03\x0a\x01" "a\x0a\x03\x0a\x01" "a"), "are both \"a\"");
    EXPECT_SAYS(said("\x0a\x05\x0a\x01" "a\x18\x09"), "type 9");
    EXPECT_SAYS(said("\x0a\x05\x0a\x01" "a\x18\x06"), "names no byte");
    EXPECT_SAYS(said("\x0a\x03\x0a\x01" "a\x12\x02\x18\x03"), "model type 3");
    EXPECT_SAYS(said("\x0a\x05\x0a\x01" "a\x18\x02\x12\x03\x98\x02\x01"), "byte_fallback is on");
    EXPECT_SAYS(said("\x0a\x05\x0a\x01" "a\x18\x02\x1a\x03\x12\x01x"), "compiled map");
    EXPECT_SAYS(said(good.substr(0, good.size() / 2)), "past the end");
}

TEST(TokenizerFiles, CheckTellsWhatTheVocabularyIsAndWhichIdsAreNeverMade) {
    const TempFolder temp;
    temp.write("tokenizer.model", tiktoken({"bc", "ab", "abcd", "\u4e00"}));
    temp.write("tokenizer_config.json", config);
    const TokenizerCheck c = check_tokenizer(Tokenizer::load(temp.path()));
    EXPECT_EQ(c.ids, 261);
    EXPECT_EQ(c.holes, 40);
    EXPECT_EQ(c.special, 1);
    EXPECT_EQ(c.part_of_character, 128);
    EXPECT_EQ(c.round_trips, 132);
    EXPECT_EQ(c.several + c.lost_count, 0);
    // Without a merge for it, a token of a plain BPE is never made (P16: ignore_merges is what makes it).
    Json file = Json::parse(read_file(KEEL_TEST_DIR "/golden/tokenizer/llama3.json"));
    EXPECT_EQ(check_tokenizer(Tokenizer::parse(file.dump(), "t.json")).several, 1);  // "9 9": no piece is so
    file["model"]["ignore_merges"] = false;
    const TokenizerCheck without = check_tokenizer(Tokenizer::parse(file.dump(), "t.json"));
    EXPECT_EQ(without.several, 3);
    ASSERT_EQ(without.unreachable.size(), 3u);
    // A normalizer that changes text: its tokens do not come back.
    file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "q"}}}, {"content", "k"}};
    const TokenizerCheck lost = check_tokenizer(Tokenizer::parse(file.dump(), "t.json"));
    EXPECT_GT(lost.lost_count, 0);
    EXPECT_EQ(lost.lost.at(0).back.find('q'), std::string::npos);
}

TEST(TokenizerFiles, EveryVocabularyOfTheCorpusSurvivesTheCheck) {
    for (const char* kind : {"llama2.json", "meta_first.json", "o200k.json", "spm_llama.model", "spm_unigram.model", "vocab_merges", "tiktoken_o200k"}) {
        const TokenizerCheck c = check_tokenizer(Tokenizer::load(folder + kind));
        EXPECT_EQ(c.lost_count, 0) << kind << ": " << (c.lost.empty() ? "" : c.lost[0].text + " -> " + c.lost[0].back);
        EXPECT_GT(c.round_trips, c.ids / 9) << kind;
    }
}

}  // namespace
}  // namespace keel
