// Reading tokenizer.json, encoding and decoding. Goldens by tests/golden/make_tokenizer.py, from an independent program.
#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "data/tokenizer_model.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

using Json = nlohmann::json;

const std::string folder = KEEL_TEST_DIR "/golden/tokenizer/";
Tokenizer golden(const std::string& kind) { return Tokenizer::load(folder + kind + ".json"); }
Json golden_json(const std::string& kind) { return Json::parse(read_file(folder + kind + ".json")); }

// What the error says when `change` is made to a good file.
std::string refusal(const std::string& kind, const std::function<void(Json&)>& change) {
    Json file = golden_json(kind);
    change(file);
    return message_of([&] { Tokenizer::parse(file.dump(), "t.json"); });
}

TEST(Tokenizer, IdsAndTextEqualTheGoldensOfEveryKind) {
    const Json cases = Json::parse(read_file(folder + "cases.json"));
    for (const char* kind : {"gpt2", "smollm", "llama3", "qwen"}) {
        const Tokenizer tokenizer = golden(kind);
        Encoder cached(tokenizer);
        for (const Json& c : cases.at("encode")) {
            if (c[0] != kind) continue;
            const auto text = c[1].get<std::string>();
            const auto want = c[2].get<std::vector<std::int32_t>>();
            EXPECT_EQ(tokenizer.encode(text), want) << kind << ": " << c[1];
            std::vector<std::int32_t> ids;
            cached.encode(text, ids);
            EXPECT_EQ(ids, want) << kind << ", with a cache: " << c[1];
            if (c[3].is_null()) continue;
            EXPECT_EQ(tokenizer.decode(want), c[3].get<std::string>()) << kind << ": " << c[1];
        }
    }
}

TEST(Tokenizer, WholePiecesBeatMergesOnlyWithIgnoreMerges) {
    const Tokenizer with = golden("llama3");
    Json file = golden_json("llama3");
    file["model"]["ignore_merges"] = false;
    const Tokenizer without = Tokenizer::parse(file.dump(), "t.json");
    EXPECT_EQ(with.encode(" unreachable").size(), 1u);
    EXPECT_GT(without.encode(" unreachable").size(), 1u);
    EXPECT_NE(with.hash(), without.hash());
}

TEST(Tokenizer, RoundTripsEveryValidTextWithoutANormalizer) {
    const Random random(11, Purpose::test, "tokenizer");
    for (const char* kind : {"gpt2", "smollm", "llama3"}) {
        const Tokenizer tokenizer = golden(kind);
        for (std::uint64_t i = 0; i < 300; ++i) {
            std::string text;
            for (std::uint64_t j = 0; j < 40; ++j) {
                const auto x = random.bits(i * 40 + j);
                std::uint32_t code = x[0] % (x[1] % 3 == 0 ? 0x110000u : x[1] % 3 == 1 ? 0x80u : 0x800u);
                if (code >= 0xd800 && code < 0xe000) code = 'x';
                append_utf8(code, text);
            }
            ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << kind;
        }
    }
}

TEST(Tokenizer, BytesThatAreNotUtf8BecomeReplacementCharactersAndNothingElse) {
    const Tokenizer tokenizer = golden("gpt2");
    const Random random(12, Purpose::test, "tokenizer");
    for (std::uint64_t i = 0; i < 300; ++i) {
        std::string bytes, repaired;
        for (std::uint64_t j = 0; j < 64; ++j) bytes += static_cast<char>(random.bits64(i * 64 + j) & 0xff);
        append_repaired(bytes, repaired);
        ASSERT_EQ(tokenizer.decode(tokenizer.encode(bytes)), repaired);
    }
}

TEST(Tokenizer, SpecialTextIsATokenOrPlainTextAsAsked) {
    const Tokenizer tokenizer = golden("llama3");
    const std::int32_t eos = *tokenizer.id("<|endoftext|>");
    EXPECT_EQ(tokenizer.eos_id(), eos);
    EXPECT_EQ(tokenizer.encode("<|endoftext|>"), std::vector<std::int32_t>{eos});
    Encoder plain(tokenizer, SpecialText::plain);
    std::vector<std::int32_t> ids;
    plain.encode("a<|endoftext|>", ids);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), eos), 0);
    EXPECT_EQ(tokenizer.decode(ids), "a<|endoftext|>");
    EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{eos}, true), "");
}

TEST(Tokenizer, StreamedTextNeverSplitsACharacterAndAddsUpToTheWhole) {
    const Tokenizer tokenizer = golden("gpt2");
    const std::string text = "na\u00efve \U0001f642 \u65e5\u672c\u8a9e\u3000\U0001f468\u200d\U0001f469";
    const auto ids = tokenizer.encode(text);
    StreamDecoder stream(tokenizer);
    std::string whole;
    for (const std::int32_t id : ids) {
        const std::string part = stream.push(id);
        EXPECT_EQ(utf8_valid_prefix(part), part.size());
        EXPECT_EQ(part.find("\ufffd"), std::string::npos);
        whole += part;
    }
    EXPECT_EQ(whole + stream.finish(), text);
    stream.push(ids[3]);  // the first byte of a character, and no more
    std::vector<std::int32_t> first{tokenizer.encode("\U0001f642").front()};
    StreamDecoder cut(tokenizer);
    EXPECT_EQ(cut.push(first[0]), "");
    EXPECT_EQ(cut.finish(), "\ufffd");
}

TEST(Tokenizer, LongPiecesAreEncodedInNLogN) {
    const Tokenizer tokenizer = golden("gpt2");
    for (const char* unit : {"a", " ", "the", "\u65e5", "ab"}) {
        std::string text;
        while (text.size() < 1 << 20) text += unit;
        const auto began = std::chrono::steady_clock::now();
        const auto ids = tokenizer.encode(text);
        EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), 5) << unit;
        EXPECT_EQ(tokenizer.decode(ids), text);
    }
}

TEST(Tokenizer, LongAndShortPiecesMergeAlike) {
    // Pieces around the border between the two methods, against the definition: lowest rank first, leftmost on ties.
    const Tokenizer tokenizer = golden("gpt2");
    const TokenizerModel& model = tokenizer.model();
    const Random random(13, Purpose::test, "merge");
    for (std::uint64_t i = 0; i < 400; ++i) {
        std::vector<std::int32_t> symbols, want;
        const std::size_t size = 30 + random.bits64(i) % 60;
        for (std::uint64_t j = 0; j < size; ++j)
            symbols.push_back(model.byte_symbols.byte("theings wr"[random.bits64(1000 + i * 100 + j) % 10] & 0x7f));
        want = symbols;
        while (true) {
            std::size_t best = want.size();
            std::uint32_t rank = MergeTable::none;
            for (std::size_t k = 0; k + 1 < want.size(); ++k)
                if (const auto found = model.merge_table.find(want[k], want[k + 1]); found.rank < rank) rank = found.rank, best = k;
            if (best == want.size()) break;
            want[best] = model.merge_table.find(want[best], want[best + 1]).joined;
            want.erase(want.begin() + static_cast<std::ptrdiff_t>(best) + 1);
        }
        BpeScratch scratch;
        symbols.resize(scratch.merge(model.merge_table, symbols));
        ASSERT_EQ(symbols, want) << size;
    }
}

TEST(Tokenizer, WritesAFileThatReadsBackAsTheSameTokenizer) {
    for (const char* kind : {"gpt2", "smollm", "llama3", "qwen"}) {
        const Tokenizer tokenizer = golden(kind);
        const Tokenizer again = Tokenizer::parse(tokenizer.to_json(), "again.json");
        EXPECT_EQ(again.hash(), tokenizer.hash()) << kind;
        EXPECT_EQ(again.to_json(), tokenizer.to_json()) << kind;
    }
}

TEST(Tokenizer, HashDependsOnWhatDecidesIdsAndNotOnLayout) {
    const Json file = golden_json("gpt2");
    const std::uint64_t hash = Tokenizer::parse(file.dump(), "a").hash();
    EXPECT_EQ(Tokenizer::parse(file.dump(4), "b").hash(), hash);
    Json swapped = file, renamed = file;
    std::swap(swapped["model"]["merges"][3], swapped["model"]["merges"][4]);
    EXPECT_NE(Tokenizer::parse(swapped.dump(), "c").hash(), hash);
    renamed["added_tokens"].back()["rstrip"] = true;
    EXPECT_NE(Tokenizer::parse(renamed.dump(), "d").hash(), hash);
}

TEST(Tokenizer, NamesItsSpecialTokensFromTheFilesBesideIt) {
    const TempFolder temp;
    temp.write("tokenizer.json", golden_json("gpt2").dump());
    EXPECT_EQ(Tokenizer::load(temp.path()).eos_id(), 0);
    EXPECT_EQ(Tokenizer::load(temp.path()).bos_id(), std::nullopt);
    temp.write("tokenizer_config.json", R"({"bos_token": {"content": "<b>"}, "eos_token": "<a>"})");
    const Tokenizer named = Tokenizer::load(temp.path());
    EXPECT_EQ(named.eos_id(), named.id("<a>"));
    EXPECT_EQ(named.bos_id(), named.id("<b>"));
    EXPECT_EQ(named.hash(), golden("gpt2").hash());
    temp.write("tokenizer_config.json", R"({"eos_token": "<nowhere>"})");
    EXPECT_SAYS(message_of([&] { Tokenizer::load(temp.path()); }), "<nowhere>");
}

TEST(Tokenizer, RefusesByNameEveryComponentItWouldOtherwiseSkip) {
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["normalizer"] = {{"type", "Lowercase"}}; }), "normalizer \"Lowercase\"");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["normalizer"] = {{"type", "Precompiled"}}; }), "normalizer \"Precompiled\"");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["pre_tokenizer"] = {{"type", "BertPreTokenizer"}}; }), "\"BertPreTokenizer\"");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["pre_tokenizer"] = {{"type", "WhitespaceSplit"}}; }), "\"WhitespaceSplit\"");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["decoder"] = {{"type", "WordPiece"}}; }), "decoder \"WordPiece\"");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["decoder"] = nullptr; }), "no decoder");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["decoder"] = {{"type", "Fuse"}}; }), "no ByteLevel decoder");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["post_processor"] = {{"type", "BertProcessing"}}; }), "BertProcessing");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["model"]["type"] = "WordPiece"; }), "model \"WordPiece\"");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["model"]["dropout"] = 0.1; }), "dropout");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }), "end_of_word_suffix");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {f["pre_tokenizer"], f["pre_tokenizer"]}}}; }),
                "two ByteLevel");
}

TEST(Tokenizer, RefusesFilesThatContradictThemselves) {
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["model"]["merges"].push_back({"zz", "qq"}); }), "not in the vocabulary");
    EXPECT_SAYS(refusal("smollm", [](Json& f) { f["model"]["merges"][0] = "a b c"; }), "one space");
    EXPECT_SAYS(refusal("smollm", [](Json& f) { f["model"]["merges"][0] = 3; }), "merge 0");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["model"]["vocab"]["zzz"] = 5; }), "belongs to");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["model"]["vocab"]["zzz"] = -1; }), "whole number");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["model"]["vocab"]["zzz"] = 2000000000; }), "far beyond");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["model"]["vocab"] = Json::object(); }), "empty");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["added_tokens"][0]["id"] = 3; }), "in the vocabulary");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f["added_tokens"][1]["id"] = 4; }), "another token");
    EXPECT_SAYS(refusal("gpt2", [](Json& f) { f.erase("model"); }), "\"model\"");
    EXPECT_SAYS(message_of([] { Tokenizer::parse("{\"a\":1,\"a\":2}", "t.json"); }), "twice");
    EXPECT_SAYS(message_of([] { Tokenizer::parse("{", "t.json"); }), "not valid JSON");
    // Shown in a message, such a value would exhaust the stack.
    EXPECT_SAYS(message_of([] {
        Tokenizer::parse("{\"model\":{\"dropout\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}}", "t.json");
    }), "nested more than 64 deep");
    EXPECT_SAYS(message_of([] { Tokenizer::parse("[]", "t.json"); }), "not a JSON object");
    EXPECT_SAYS(message_of([] { Tokenizer::load("/nowhere/tokenizer.json"); }), "/nowhere/tokenizer.json");
    const TempFolder temp;
    EXPECT_SAYS(message_of([&] { Tokenizer::load(temp.path()); }), "holds no tokenizer.json, no tokenizer.model");
}

TEST(Tokenizer, SaysWhichByteItCannotEncodeAndWhichIdItCannotDecode) {
    Json file = golden_json("gpt2");
    file["model"]["merges"] = Json::array();
    file["model"]["vocab"].erase("q");
    const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "t.json");
    EXPECT_SAYS(message_of([&] { tokenizer.encode("q"); }), "byte 113");
    EXPECT_SAYS(message_of([&] { tokenizer.decode(std::vector<std::int32_t>{9999}); }), "9999");
    EXPECT_SAYS(message_of([&] { tokenizer.decode(std::vector<std::int32_t>{-1}); }), "-1");
}

}  // namespace
}  // namespace keel
