// The parts of a tokenizer.json beyond byte-level BPE with a known pattern: what each does, and what is refused by name.
// Whole tokenizers are held to the reference programs in tokenizer_corpus_test.cpp.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/tokenizer.h"
#include "data/tokenizer_model.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

using Json = nlohmann::json;
const std::string folder = KEEL_TEST_DIR "/golden/tokenizer_corpus/";

Json file_of(const std::string& kind) { return Json::parse(read_file(folder + kind + ".json")); }

std::string refusal(const std::string& kind, const std::function<void(Json&)>& change) {
    Json file = file_of(kind);
    change(file);
    return message_of([&] { Tokenizer::parse(file.dump(), "t.json"); });
}

// How a pre-tokenizer cuts a text, as the pieces separated by "|".
std::string pieces(const Json& pre_tokenizer, const std::string& text) {
    Json file = file_of("llama2");
    file["normalizer"] = nullptr;
    file["pre_tokenizer"] = pre_tokenizer;
    const TokenizerModel model = parse_tokenizer_json(file.dump(), "t.json");
    Splitter splitter;
    std::string out;
    splitter.run(model.steps, text, true, [&](std::string_view piece) { out += (out.empty() ? "" : "|") + std::string(piece); });
    return out;
}

Json split(const Json& pattern, const char* behavior, bool invert = false) {
    return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
}

TEST(TokenizerParts, SplitBehavesInFiveWays) {
    const Json space = {{"Regex", "\\s"}};
    EXPECT_EQ(pieces(split(space, "Isolated"), "a b  c"), "a| |b| | |c");
    EXPECT_EQ(pieces(split(space, "Removed"), "a b  c"), "a|b|c");
    EXPECT_EQ(pieces(split(space, "MergedWithPrevious"), "a b  c"), "a |b | |c");
    EXPECT_EQ(pieces(split(space, "MergedWithNext"), "a b  c"), "a| b| | c");
    EXPECT_EQ(pieces(split(space, "Contiguous"), "a b  c"), "a| |b|  |c");
    EXPECT_EQ(pieces(split(space, "Removed", true), "a b  c"), " | | ");
}

// P18: a String that looks like a pattern is the text it is.
TEST(TokenizerParts, AStringPatternStaysLiteral) {
    EXPECT_EQ(pieces(split({{"String", "\\s+"}}, "Isolated"), "a b\\s+c"), "a b|\\s+|c");
    EXPECT_EQ(pieces(split({{"Regex", "\\s+"}}, "Isolated"), "a b\\s+c"), "a| |b\\s+c");
}

// P17: the pattern of the file, and no other; one in another spelling is not taken for a known one.
TEST(TokenizerParts, ThePatternIsTheFilesAndNeverReplaced) {
    const auto of = [](Pattern p) { return pieces(split({{"Regex", pattern_text(p)}}, "Isolated"), "\n\nhello 20 (abc they'LL"); };
    EXPECT_EQ(of(Pattern::gpt2), "\n|\n|hello| 20| (|abc| they|'|LL");
    EXPECT_EQ(of(Pattern::llama3), "\n\n|hello| |20| (|abc| they|'LL");
    EXPECT_EQ(of(Pattern::qwen), "\n\n|hello| |2|0| (|abc| they|'LL");
    // Qwen's with one alternative less: no scanner may answer for it.
    const std::string other = R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    EXPECT_EQ(pieces(split({{"Regex", other}}, "Isolated"), "they'LL 20"), "they|'LL| |2|0");
    EXPECT_EQ(pieces(split({{"Regex", other}}, "Isolated"), "it's"), "it|'s");
}

TEST(TokenizerParts, PunctuationDigitsAndWordsAreCutAsTheirNamesSay) {
    EXPECT_EQ(pieces({{"type", "Punctuation"}}, "a,b\u3002$"), "a|,|b|\u3002|$");
    EXPECT_EQ(pieces({{"type", "Punctuation"}, {"behavior", "Contiguous"}}, "a...b"), "a|...|b");
    EXPECT_EQ(pieces({{"type", "Digits"}, {"individual_digits", true}}, "a12\u00bd"), "a|1|2|\u00bd");
    EXPECT_EQ(pieces({{"type", "Digits"}, {"individual_digits", false}}, "a12b"), "a|12|b");
    EXPECT_EQ(pieces({{"type", "Whitespace"}}, " can't \u00e9-x_1\n"), "can|'|t|\u00e9|-|x_1");
}

// P19: where the space in front goes depends on the form of the file, and on it alone.
TEST(TokenizerParts, APrefixGoesWhereTheFileSays) {
    const auto meta = [](const char* scheme, bool cut) { return Json{{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", cut}}; };
    EXPECT_EQ(pieces(meta("always", true), "a b"), "\u2581a|\u2581b");
    EXPECT_EQ(pieces(meta("never", true), "a b"), "a|\u2581b");
    EXPECT_EQ(pieces(meta("always", false), " a  b"), "\u2581a\u2581\u2581b");
    EXPECT_EQ(pieces({{"type", "Metaspace"}, {"replacement", "\u2581"}, {"add_prefix_space", false}}, "a b"), "a|\u2581b");
    // Behind an added token: `first` adds none, `always` and Prepend do.
    const auto behind = [&](const Json& pre, const Json& normalizer) {
        Json file = file_of("llama2");
        file["pre_tokenizer"] = pre;
        file["normalizer"] = normalizer;
        const Tokenizer t = Tokenizer::parse(file.dump(), "t.json");
        return std::pair(t.encode("<s>x").size(), t.encode("x").size());
    };
    const Json prepend = file_of("llama2")["normalizer"];
    const auto always = behind(meta("always", true), nullptr), first = behind(meta("first", true), nullptr), form = behind(nullptr, prepend);
    EXPECT_EQ(always, (std::pair<std::size_t, std::size_t>{3, 2}));  // <s> _ x, and _ x
    EXPECT_EQ(first, (std::pair<std::size_t, std::size_t>{2, 2}));   // <s> x
    EXPECT_EQ(form, always);
}

TEST(TokenizerParts, DecodingDropsExactlyOneLeadingSpace) {
    const Tokenizer prepend = Tokenizer::load(folder + "llama2.json"), first = Tokenizer::load(folder + "meta_first.json");
    for (const char* text : {"x", " x", "  x  y"}) EXPECT_EQ(prepend.decode(prepend.encode(text)), text);
    EXPECT_EQ(prepend.decode(prepend.encode("<s>x")), "<s> x");  // a prefix behind every added token, and one dropped in all
    for (const char* text : {"x", "x  y", "<s>x"}) EXPECT_EQ(first.decode(first.encode(text)), text);
}

TEST(TokenizerParts, RunsOfByteTokensAreTextAsAWholeOrNotAtAll) {
    const Tokenizer t = Tokenizer::load(folder + "llama2.json");
    const auto byte = [&](int b) {
        for (std::int32_t id = 0; id < t.vocab_size(); ++id)
            if (t.model().tokens[static_cast<std::size_t>(id)].is_byte && static_cast<unsigned char>(t.bytes(id)[0]) == b) return id;
        return -1;
    };
    EXPECT_EQ(t.decode(std::vector{byte(0xc3), byte(0xa9)}), "\u00e9");
    EXPECT_EQ(t.decode(std::vector{byte(0xc3), byte(0xa9), byte(0xc3)}), "\ufffd\ufffd\ufffd");
    StreamDecoder stream(t);
    EXPECT_EQ(stream.push(byte(0xc3)), "");
    EXPECT_EQ(stream.push(byte(0xa9)), "");  // the run may go on
    EXPECT_EQ(stream.finish(), "\u00e9");
}

TEST(TokenizerParts, WhatNoTokenStandsForIsBytesThenUnknownThenAnError) {
    const Tokenizer bytes = Tokenizer::load(folder + "llama2.json");
    EXPECT_EQ(bytes.encode("\U0001f642").size(), 5u);  // the prefix and four bytes
    Json file = file_of("unknown");
    const Tokenizer unknown = Tokenizer::parse(file.dump(), "t.json");
    EXPECT_EQ(unknown.encode("\U0001f642\U0001f642").size(), 2u);  // the prefix and one for both
    file["model"]["fuse_unk"] = false;
    EXPECT_EQ(Tokenizer::parse(file.dump(), "t.json").encode("\U0001f642\U0001f642").size(), 3u);
    file["model"]["unk_token"] = nullptr;
    const Tokenizer none = Tokenizer::parse(file.dump(), "t.json");
    EXPECT_SAYS(message_of([&] { none.encode("\U0001f642"); }), "no token for U+1f642");
    file = file_of("unigram");
    file["model"]["unk_id"] = nullptr;
    EXPECT_SAYS(message_of([&] { Tokenizer::parse(file.dump(), "t.json").encode("\U0001f642"); }), "has no token");
}

TEST(TokenizerParts, RefusesWhatItWouldOtherwiseGetWrong) {
    const auto pre = [](Json& f) -> Json& { return f["pre_tokenizer"]; };
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { pre(f) = split({{"Regex", "[a&&b]"}}, "Isolated"); }), "&& inside");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { pre(f) = split({{"Regex", ""}}, "Isolated"); }), "is empty");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { pre(f) = split({{"x", "a"}}, "Isolated"); }), "neither a Regex nor a String");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { pre(f) = split({{"Regex", "a"}}, "Kept"); }), "Kept");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { pre(f) = {{"type", "Metaspace"}, {"replacement", "ab"}}; }), "not one character");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { pre(f) = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}}; }), "\"last\"");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) {
        pre(f) = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}, {"add_prefix_space", false}};
    }), "another prepend_scheme");
    const auto last = [](Json& f) -> Json& { return f["decoder"]["decoders"].back(); };
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { last(f)["stop"] = 1; }), "more than the beginning");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { last(f)["start"] = -1; }), "from 0 to 1000");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { f["decoder"]["decoders"].push_back({{"type", "ByteFallback"}}); }), "behind Fuse");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { f["decoder"]["decoders"].push_back(f["decoder"]["decoders"][0]); }), "behind");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { f["decoder"] = {{"type", "ByteLevel"}}; }), "does not fit");
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { f["model"]["unk_token"] = "<nowhere>"; }), "<nowhere>");
    EXPECT_SAYS(refusal("unigram", [&](Json& f) { f["model"]["unk_id"] = 100000; }), "unk_id 100000");
    EXPECT_SAYS(refusal("unigram", [&](Json& f) { f["model"]["vocab"][3] = {"a"}; }), "entry 3");
    EXPECT_SAYS(refusal("unigram", [&](Json& f) { f["model"]["vocab"][3] = f["model"]["vocab"][4]; }), "occurs twice");
    EXPECT_SAYS(refusal("unigram", [&](Json& f) { pre(f) = {{"type", "ByteLevel"}}; }), "Unigram");
    Json many = Json::array();
    for (int i = 0; i < 100; ++i) many.push_back({{"type", "NFC"}});
    EXPECT_SAYS(refusal("llama2", [&](Json& f) { f["normalizer"] = {{"type", "Sequence"}, {"normalizers", many}}; }), "more than 64 parts");
}

// A piece is cut only where no merge joins: with and without the cut the ids are the same.
TEST(TokenizerParts, LongPiecesAreCutOnlyWhereNoMergeJoins) {
    CutTable cuts;
    EXPECT_EQ(cuts.part_end("ab"), 2u);
    cuts.add_merge("xa", "bx");
    EXPECT_EQ(cuts.part_end("abc"), 2u);
    EXPECT_EQ(cuts.part_end("ba"), 1u);
    cuts.add_merge("\u4e00", "\xe4\xba");  // to the first bytes of a character
    EXPECT_EQ(cuts.part_end("\u4e00\u4e8c\u4e00"), 6u);
    EXPECT_EQ(cuts.part_end("\u4e8c\u4e00"), 3u);
    cuts.add_merge("\xba\x8c", "a");       // from the last bytes of one
    EXPECT_EQ(cuts.part_end("\u4e8cab\u4e8c"), 5u);
    cuts.add_whole("q\u4e00r");
    EXPECT_EQ(cuts.part_end("q\u4e00rq"), 5u);
}

}  // namespace
}  // namespace keel
