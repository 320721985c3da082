#include "data/bpe_train.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "tests/data/helpers.h"

namespace keel {
namespace {

const std::string text =
    "the cat sat on the mat. the other cat isn't there, they're at the theatre; 123 times 456.\n"
    "In the beginning was the word, and the word was with the cat, and the cat was the word.\n"
    "aaaa aaaa aaaaaaa aaa aa bananas banana ananas na na naïve café 日本語日本語\n";

Tokenizer train(const std::string& t, std::int64_t vocab, std::int64_t min_count = 2) {
    BpeTrainer trainer;
    trainer.add(t);
    return trainer.train({.vocab_size = vocab, .min_count = min_count});
}

// The definition, evaluated from scratch at every step.
std::vector<Merge> merges_by_definition(std::string_view corpus, std::int64_t vocab, const TokenizerModel& model) {
    std::map<std::string, std::int64_t> counts;
    for_each_piece({}, corpus, [&](std::string_view piece) { ++counts[std::string(piece)]; });
    std::vector<std::pair<std::vector<std::int32_t>, std::int64_t>> words;
    for (const auto& [piece, count] : counts) {
        std::vector<std::int32_t> ids;
        for (const char c : piece) ids.push_back(model.byte_symbols.byte(static_cast<unsigned char>(c)));
        words.emplace_back(ids, count);
    }
    std::vector<Merge> merges;
    for (std::int32_t next = 257; next < vocab; ++next) {
        std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> pairs;
        for (const auto& [ids, count] : words)
            for (std::size_t i = 0; i + 1 < ids.size(); ++i) pairs[{ids[i], ids[i + 1]}] += count;
        auto best = pairs.end();
        for (auto p = pairs.begin(); p != pairs.end(); ++p)
            if (best == pairs.end() || p->second > best->second) best = p;  // the map is in the order of ids
        if (best == pairs.end() || best->second < 2) break;
        const auto [left, right] = best->first;
        merges.push_back({left, right, next});
        for (auto& [ids, count] : words)
            for (std::size_t i = 0; i + 1 < ids.size(); ++i)
                if (ids[i] == left && ids[i + 1] == right) {
                    ids[i] = next;
                    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
                }
    }
    return merges;
}

TEST(BpeTrain, EachMergeIsTheMostFrequentPairByDefinition) {
    const Tokenizer tokenizer = train(text, 340);
    const auto want = merges_by_definition(text, 340, tokenizer.model());
    const auto& got = tokenizer.model().merges;
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].left, want[i].left) << i;
        EXPECT_EQ(got[i].right, want[i].right) << i;
    }
}

TEST(BpeTrain, TheSamePiecesInAnyOrderGiveTheSameFile) {
    const Tokenizer whole = train(text, 330);
    BpeTrainer parts;
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at) + 1;
        lines.push_back(text.substr(at, end - at));
        at = end;
    }
    for (auto line = lines.rbegin(); line != lines.rend(); ++line) parts.add(*line);
    EXPECT_EQ(parts.train({.vocab_size = 330}).to_json(), whole.to_json());
    EXPECT_EQ(train(text, 330).to_json(), whole.to_json());
}

TEST(BpeTrain, SpecialTokensComeFirstThenBytesThenMerges) {
    BpeTrainer trainer;
    trainer.add(text);
    const Tokenizer t = trainer.train({.vocab_size = 280, .special = {"<|endoftext|>", "<pad>"}});
    EXPECT_EQ(t.id("<|endoftext|>"), 0);
    EXPECT_EQ(t.id("<pad>"), 1);
    EXPECT_EQ(t.eos_id(), 0);
    EXPECT_EQ(t.bytes(2), "!");
    EXPECT_EQ(t.vocab_size(), 280);
    EXPECT_EQ(t.encode("a<pad>"), (std::vector<std::int32_t>{t.model().byte_symbols.byte('a'), 1}));
    const Tokenizer again = Tokenizer::parse(t.to_json(), "again");
    EXPECT_EQ(again.hash(), t.hash());
    EXPECT_EQ(again.eos_id(), 0);
}

TEST(BpeTrain, EncodesAndDecodesWhatItLearnedAndWhatItDidNot) {
    const Tokenizer t = train(text, 320);
    for (const std::string& s : {text, std::string("quite other words: \U0001f642 \u0416\n\n"), std::string(1, '\0')})
        EXPECT_EQ(t.decode(t.encode(s)), s);
    EXPECT_LT(t.encode(text).size(), text.size() * 2 / 3);
}

TEST(BpeTrain, StopsWhenNoPairIsFrequentEnough) {
    EXPECT_EQ(train("ab ab", 1000).model().merges.size(), 1u);  // "ab"; " ab" occurs once
    EXPECT_EQ(train("ab ab", 1000, 1).model().merges.size(), 2u);
    EXPECT_EQ(train("ab ab", 1000, 3).model().merges.size(), 0u);
}

TEST(BpeTrain, HostilePiecesTakeNoHours) {
    const Random random(8, Purpose::test, "train");
    std::string letters;
    for (std::uint64_t i = 0; i < 1 << 19; ++i) letters += static_cast<char>('a' + random.bits64(i) % 26);
    for (const std::string& t : {std::string(1 << 20, 'a'), std::string(1 << 20, ' '), letters}) {
        const auto began = std::chrono::steady_clock::now();
        EXPECT_GT(train(t, 300).model().merges.size(), 0u);
        EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), 10);
    }
}

std::vector<std::string> many_texts() {
    const Random random(9, Purpose::test, "texts");
    std::vector<std::string> texts;
    for (std::uint64_t i = 0; i < 300; ++i) {
        std::string t = text;
        for (std::uint64_t j = 0; j < 40; ++j) t += " w" + std::to_string(random.bits64(i * 40 + j) % (j < 30 ? 50 : 100000));
        texts.push_back(std::move(t));
    }
    return texts;
}

TEST(BpeTrain, AnyNumberOfThreadsLearnsTheSame) {
    const auto texts = many_texts();
    std::string first;
    for (const int threads : {1, 2, 3}) {
        Stream stream(threads, 0);
        BpeTrainer trainer;
        trainer.add(std::span(texts).first(100), stream);
        trainer.add(std::span(texts).subspan(100), stream);
        const std::string json = trainer.train({.vocab_size = 400}).to_json();
        if (first.empty()) first = json;
        EXPECT_EQ(json, first) << threads;
    }
    BpeTrainer one_by_one;
    for (const std::string& t : texts) one_by_one.add(t);
    EXPECT_EQ(one_by_one.train({.vocab_size = 400}).to_json(), first);
}

// When room ends the rarest pieces go, whatever the number of threads, and what is frequent stays exact.
TEST(BpeTrain, ForgetsTheRarestPiecesWhenRoomEnds) {
    const auto texts = many_texts();
    std::string first;
    for (const int threads : {1, 3}) {
        Stream stream(threads, 0);
        BpeTrainer all, bounded({}, 200);
        for (std::size_t at = 0; at < texts.size(); at += 50) {
            all.add(std::span(texts).subspan(at, 50), stream);
            bounded.add(std::span(texts).subspan(at, 50), stream);
        }
        EXPECT_GT(all.distinct_pieces(), 2000);
        EXPECT_LE(bounded.distinct_pieces(), 200);
        EXPECT_GT(bounded.counts().forgotten(), 2000);
        std::map<std::string, std::int64_t> exact;
        all.counts().for_each([&](std::string_view piece, std::int64_t count) { exact[std::string(piece)] = count; });
        bounded.counts().for_each([&](std::string_view piece, std::int64_t count) {
            EXPECT_LE(count, exact.at(std::string(piece)));
            if (piece == " the") { EXPECT_EQ(count, exact.at(" the")); }
        });
        const std::string json = bounded.train({.vocab_size = 300}).to_json();
        if (first.empty()) first = json;
        EXPECT_EQ(json, first) << threads;
    }
}

TEST(BpeTrain, RefusesWhatCannotBe) {
    EXPECT_SAYS(message_of([] { train(text, 256); }), "--vocab is 256; it must be from 257");
    EXPECT_SAYS(message_of([] { train("", 300); }), "no text");
    BpeTrainer trainer;
    trainer.add(text);
    EXPECT_SAYS(message_of([&] { trainer.train({.vocab_size = 300, .special = {"<a>", "<a>"}}); }), "given twice");
    EXPECT_SAYS(message_of([&] { trainer.train({.vocab_size = 300, .special = {"a b"}}); }), "\"a b\"");
    EXPECT_SAYS(message_of([&] { trainer.train({.vocab_size = 300, .min_count = 0}); }), "--min-count is 0");
}

}  // namespace
}  // namespace keel
