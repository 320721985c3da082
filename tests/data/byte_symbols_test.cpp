// Characters as symbols must give the ids that bytes give, whatever the merges are: also those that join parts of
// characters, and those whose ranks come in another order than their tokens were made.
#include "data/byte_symbols.h"

#include "data/utf8.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

// A vocabulary learned from random texts: 256 bytes, then one token per merge of a random adjacent pair.
struct Vocabulary {
    std::vector<std::string> tokens;
    std::vector<Merge> merges;
    std::array<std::int32_t, 256> bytes;
    std::vector<std::uint32_t> characters;
    CutTable cuts;

    Vocabulary() {
        for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b)), bytes[static_cast<std::size_t>(b)] = b;
    }
    std::vector<std::int32_t> from_bytes(std::string_view text, const MergeTable& table) const {
        std::vector<std::int32_t> ids;
        for (const char c : text) ids.push_back(bytes[static_cast<unsigned char>(c)]);
        BpeScratch scratch;
        ids.resize(scratch.merge(table, ids));
        return ids;
    }
    void learn(std::string_view text, std::uint64_t choice) {
        const auto ids = from_bytes(text, MergeTable(merges));
        if (ids.size() < 2) return;
        const std::size_t i = choice % (ids.size() - 1);
        const auto joined = static_cast<std::int32_t>(tokens.size());
        merges.push_back({ids[i], ids[i + 1], joined});
        tokens.push_back(tokens[static_cast<std::size_t>(ids[i])] + tokens[static_cast<std::size_t>(ids[i + 1])]);
    }
    void finish() {
        for (const Merge& m : merges) cuts.add_merge(tokens[static_cast<std::size_t>(m.left)], tokens[static_cast<std::size_t>(m.right)]);
        for (const std::string& t : tokens)
            if (t.size() > 1 && utf8_valid_prefix(t) == t.size() && utf8_at(t, 0).size == t.size()) characters.push_back(utf8_at(t, 0).code);
    }
};

TEST(ByteSymbols, WholeCharactersGiveTheIdsOfTheirBytes) {
    const char* pool[] = {"a", " ", "\u4e00", "\u4e01", "\u4e40", "\u9fa5", "\u3002", "\u00e9", "\u00ea", "\U0001f642", "\U0001f602"};
    const Random random(5, Purpose::test, "byte symbols");
    std::uint64_t n = 0;
    const auto text = [&](std::uint64_t longest) {
        std::string out;
        for (std::uint64_t size = 1 + random.bits64(n++) % longest; size > 0; --size) out += pool[random.bits64(n++) % std::size(pool)];
        return out;
    };
    std::int64_t saved = 0;
    for (int trial = 0; trial < 200; ++trial) {
        Vocabulary v;
        for (int i = 0; i < 60; ++i) v.learn(text(6), random.bits64(n++));
        // In every second one the ranks are shuffled: then a merge may come before those that make its parts.
        for (std::size_t i = v.merges.size(); trial % 2 == 1 && i > 1; --i) std::swap(v.merges[i - 1], v.merges[random.bits64(n++) % i]);
        v.finish();
        const MergeTable table(v.merges);
        const ByteSymbols symbols(v.bytes, v.characters, table);
        BpeScratch scratch;
        for (int i = 0; i < 200; ++i) {
            const std::string piece = text(12);
            std::vector<std::int32_t> ids;
            symbols.append(piece, true, v.cuts, ids, "test");
            saved += static_cast<std::int64_t>(piece.size() - ids.size());
            ids.resize(scratch.merge(table, ids));
            ASSERT_EQ(ids, v.from_bytes(piece, table)) << testing::PrintToString(piece) << ", trial " << trial;
        }
    }
    EXPECT_GT(saved, 10'000) << "the short way is never taken";
}

}  // namespace
}  // namespace keel
