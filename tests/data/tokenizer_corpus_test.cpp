// Every kind of tokenizer against the program it comes from, over two megabytes of text in many scripts: code, control
// characters, special tokens as text, bytes that are no UTF-8. The corpus is made here by the same steps as in
// tests/golden/make_tokenizer_corpus.py, which wrote the tokenizers and the hashes of their ids and texts.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <array>
#include <nlohmann/json.hpp>

#include "data/tokenizer.h"
#include "data/utf8.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

using Json = nlohmann::json;
const std::string folder = KEEL_TEST_DIR "/golden/tokenizer_corpus/";

class SplitMix {
public:
    explicit SplitMix(std::uint64_t seed) : state_(seed) {}
    std::uint64_t below(std::uint64_t n) {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return (z ^ z >> 31) % n;
    }

private:
    std::uint64_t state_;
};

std::string document(std::uint64_t number, const std::vector<std::string>& pool, const std::vector<std::array<std::uint32_t, 2>>& ranges) {
    SplitMix r(number);
    std::string out;
    for (std::uint64_t items = 20 + r.below(120); items > 0; --items) {
        const std::uint64_t kind = r.below(100);
        if (kind < 70) {
            out += pool[r.below(pool.size())];
            if (r.below(2) == 0) out += ' ';
        } else if (kind < 88) {
            const auto [first, last] = ranges[r.below(ranges.size())];
            for (std::uint64_t n = 1 + r.below(5); n > 0; --n) append_utf8(static_cast<std::uint32_t>(first + r.below(last - first + 1)), out);
        } else if (kind < 94) {
            const std::uint64_t code = r.below(33);
            out += static_cast<char>(code == 32 ? 127 : code);
        } else if (kind < 97) {
            out.append(1 + r.below(40), ' ');
        } else {
            for (std::uint64_t n = 1 + r.below(4); n > 0; --n) out += static_cast<char>(static_cast<unsigned char>(128 + r.below(128)));
        }
    }
    return out;
}

const Json& golden() {
    static const Json json = Json::parse(read_file(folder + "golden.json"));
    return json;
}

const std::vector<std::string>& corpus() {
    static const auto texts = [] {
        const auto pool = golden().at("pool").get<std::vector<std::string>>();
        const auto ranges = golden().at("ranges").get<std::vector<std::array<std::uint32_t, 2>>>();
        std::vector<std::string> out;
        for (std::uint64_t i = 0; i < golden().at("documents").get<std::uint64_t>(); ++i) out.push_back(document(i, pool, ranges));
        return out;
    }();
    return texts;
}

std::string hex(std::uint64_t value) {
    char text[20];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
    return text;
}

TEST(TokenizerCorpus, IsTheOneTheGoldensWereMadeOf) {
    std::size_t bytes = 0;
    for (const std::string& text : corpus()) bytes += text.size();
    EXPECT_EQ(bytes, golden().at("bytes").get<std::size_t>());
    EXPECT_GT(bytes, std::size_t{2'000'000});
}

TEST(TokenizerCorpus, IdsAndTextsEqualTheReferenceOfEveryKind) {
    for (const auto& [name, rows] : golden().at("tokenizers").items()) {
        const Tokenizer tokenizer = Tokenizer::load(folder + name);
        Encoder encoder(tokenizer);
        const std::size_t size = corpus().size() / rows.size();
        for (std::size_t group = 0; group < rows.size(); ++group) {
            std::string all_ids, all_text;
            for (std::size_t i = group * size; i < (group + 1) * size; ++i) {
                std::string text;
                append_repaired(corpus()[i], text);
                std::vector<std::int32_t> ids;
                encoder.encode(text, ids);
                all_text += tokenizer.decode(ids) + "\n";
                ids.push_back(-1);
                all_ids.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof ids[0]);
            }
            EXPECT_EQ(hex(XXH3_64bits(all_ids.data(), all_ids.size())), rows[group][0]) << name << ": ids of documents from " << group * size;
            EXPECT_EQ(hex(XXH3_64bits(all_text.data(), all_text.size())), rows[group][1]) << name << ": texts of documents from " << group * size;
        }
    }
}

// Streaming is the same as decoding at once, and no part it hands out ends inside of a character.
TEST(TokenizerCorpus, StreamedTextNeverSplitsACharacterWhateverTheKind) {
    for (const auto& [name, rows] : golden().at("tokenizers").items()) {
        const Tokenizer tokenizer = Tokenizer::load(folder + name);
        StreamDecoder stream(tokenizer);
        for (std::size_t i = 0; i < 40; ++i) {
            const auto ids = tokenizer.encode(corpus()[i]);
            std::string whole;
            for (const std::int32_t id : ids) {
                const std::string part = stream.push(id);
                ASSERT_EQ(utf8_valid_prefix(part), part.size()) << name;
                whole += part;
            }
            ASSERT_EQ(whole + stream.finish(), tokenizer.decode(ids)) << name << ", document " << i;
        }
    }
}

// What the cache and the cutting of long pieces must not change, and reading the file again must not either.
TEST(TokenizerCorpus, IdsAreTheSameWithoutTheCacheAndFromTheFileHandedOn) {
    for (const auto& [name, rows] : golden().at("tokenizers").items()) {
        const Tokenizer tokenizer = Tokenizer::load(folder + name);
        Encoder cached(tokenizer);
        const TempFolder temp;
        const Tokenizer::File file = tokenizer.file();
        temp.write(file.name, file.content);
        if (name.starts_with("tiktoken")) temp.write("tokenizer_config.json", read_file(folder + name + "/tokenizer_config.json"));
        const Tokenizer again = Tokenizer::load(temp.path());
        EXPECT_EQ(again.hash(), tokenizer.hash()) << name;
        for (std::size_t i = 100; i < 140; ++i) {
            std::string text;
            append_repaired(corpus()[i], text);
            std::vector<std::int32_t> ids;
            cached.encode(text, ids);
            ASSERT_EQ(again.encode(text), ids) << name << ", document " << i;
        }
    }
}

}  // namespace
}  // namespace keel
