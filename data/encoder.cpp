// The way of a text through a tokenizer: added tokens, normalizer, added tokens again, pieces, ids.
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "data/tokenizer.h"
#include "data/tokenizer_model.h"
#include "kernels/base/error.h"

namespace keel {

// Most pieces of a text have occurred before: a direct-mapped cache holds the ids of short ones, one cache line each.
struct Encoder::State {
    struct alignas(64) Entry {
        std::uint8_t size = 0, count = 0;
        char piece[22];
        std::int32_t ids[10];
    };
    static_assert(sizeof(Entry) == 64);
    static constexpr std::size_t cache_size = std::size_t{1} << 15;  // 2 MiB: the second-level cache of one core

    const TokenizerModel& model;
    bool parse_special;
    std::vector<Entry> cache;
    BpeScratch scratch;
    Unigram::Scratch unigram;
    Splitter splitter;
    std::string unspelled;
    bool may_cut;

    bool encode_whole(std::string_view piece, std::vector<std::int32_t>& ids) const {
        if (!model.ignore_merges) return false;
        const std::int32_t id = model.whole_pieces.find(piece);
        if (id >= 0) ids.push_back(id);
        return id >= 0;
    }

    void compute(std::string_view piece, std::vector<std::int32_t>& ids) {
        const std::size_t first = ids.size();
        switch (model.kind) {
            case TokenizerModel::Kind::byte_bpe:
                model.byte_symbols.append(piece, !model.spelled_pieces, model.cuts, ids, model.name);
                ids.resize(first + scratch.merge(model.merge_table, std::span(ids).subspan(first)));
                return;
            case TokenizerModel::Kind::char_bpe: return model.char_bpe.encode(piece, model.merge_table, scratch, ids, model.name);
            case TokenizerModel::Kind::unigram: return model.unigram.encode(piece, unigram, ids, model.name);
        }
    }

    Entry* entry_of(std::string_view piece) {
        if (cache.empty() || piece.size() > sizeof(Entry::piece)) return nullptr;
        return &cache[XXH3_64bits(piece.data(), piece.size()) & (cache_size - 1)];
    }

    // Appends the ids of `piece` from its entry of the cache, or those that make(piece) appends, and keeps them. `part`: of a
    // piece that was cut; with ignore_merges its ids may be others than those of a piece of this text.
    template <class Make> void recall(std::string_view piece, Entry* entry, bool part, std::vector<std::int32_t>& ids, Make&& make) {
        if (entry == nullptr) return static_cast<void>(make(piece));
        const auto size = static_cast<std::uint8_t>(piece.size() | (part ? 0x80u : 0u));
        if (entry->size == size && std::memcmp(entry->piece, piece.data(), piece.size()) == 0) {
            ids.insert(ids.end(), entry->ids, entry->ids + entry->count);
            return;
        }
        const std::size_t first = ids.size();
        const bool keep = make(piece);
        const std::size_t count = ids.size() - first;
        if (!keep || count > std::size(entry->ids)) return;
        entry->size = size;
        entry->count = static_cast<std::uint8_t>(count);
        std::memcpy(entry->piece, piece.data(), piece.size());
        std::copy(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), entry->ids);
    }

    void encode_piece(std::string_view piece, Entry* entry, std::vector<std::int32_t>& ids) {
        // A piece of several parts is not kept, only its parts are: half a sentence of Chinese is seen once, its words often.
        recall(piece, entry, false, ids, [&](std::string_view whole) {
            if (encode_whole(whole, ids)) return true;
            if (!may_cut || model.cuts.part_end(whole) == whole.size()) return compute(whole, ids), true;
            while (!whole.empty()) {
                const std::size_t end = model.cuts.part_end(whole);
                encode_part(whole.substr(0, end), ids);
                whole.remove_prefix(end);
            }
            return false;
        });
    }

    void encode_part(std::string_view part, std::vector<std::int32_t>& ids) {
        const Utf8Char c = utf8_at(part, 0);
        const std::int32_t alone = c.size == part.size() ? model.byte_symbols.character(c) : -1;
        if (alone >= 0) return ids.push_back(alone);
        recall(part, entry_of(part), model.ignore_merges, ids, [&](std::string_view p) { return compute(p, ids), true; });
    }

    // The pieces of a scanner are taken a handful at a time, so that the entries of all are on their way from memory while
    // the first is looked at.
    void encode_scanned(std::string_view text, std::vector<std::int32_t>& ids) {
        struct Ahead {
            std::string_view piece;
            Entry* entry;
        };
        std::array<Ahead, 16> ahead;
        std::size_t count = 0;
        const auto encode_all = [&] {
            for (std::size_t i = 0; i < count; ++i) encode_piece(ahead[i].piece, ahead[i].entry, ids);
            count = 0;
        };
        for_each_piece(model.pretokenizer, text, [&](std::string_view piece) {
            ahead[count] = {piece, entry_of(piece)};
            __builtin_prefetch(ahead[count].entry);
            if (++count == ahead.size()) encode_all();
        });
        encode_all();
    }

    // A piece that the steps of a tokenizer.json have made.
    void encode_stepped(std::string_view piece, std::vector<std::int32_t>& ids) {
        if (model.spelled_pieces) {
            if (!read_spelling(piece, unspelled))
                fail(model.name, ": a pre-tokenizer behind ByteLevel brought in characters that spell no bytes");
            piece = unspelled;
        }
        encode_piece(piece, entry_of(piece), ids);
    }

    // Calls body(gap, its place) between the matches and appends the ids of the matches.
    template <class Body>
    void split(const AddedTokenFinder& finder, std::string_view text, std::vector<std::int32_t>& ids, Body&& body) {
        std::size_t at = 0;
        while (at < text.size()) {
            const auto match = finder.find(text, at, parse_special);
            if (match.begin > at) body(text.substr(at, match.begin - at), at);
            if (match.id >= 0) ids.push_back(match.id);
            at = match.end;
        }
    }
};

Encoder::Encoder(const Tokenizer& tokenizer, SpecialText special, bool cache)
    : state_(new State{tokenizer.model(), special == SpecialText::parse, {}, {}, {}, {}, {}, false}) {
    const TokenizerModel& model = tokenizer.model();
    // What a later step may have cut out of the spelling of bytes need not be whole characters.
    state_->may_cut = (model.kind == TokenizerModel::Kind::byte_bpe && !model.spelled_pieces) ||
                      (model.kind == TokenizerModel::Kind::char_bpe && model.char_bpe.may_cut());
    if (cache) state_->cache.resize(State::cache_size);
}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;

void Encoder::encode(std::string_view text, std::vector<std::int32_t>& ids) {
    State& s = *state_;
    const TokenizerModel& model = s.model;
    const auto encode_gap = [&](std::string_view gap, bool first) {
        if (model.cutting == TokenizerModel::Cutting::scanner) return s.encode_scanned(gap, ids);
        s.splitter.run(model.steps, gap, first, [&](std::string_view piece) { s.encode_stepped(piece, ids); });
    };
    s.split(model.raw_added, text, ids, [&](std::string_view gap, std::size_t place) {
        std::string normalized;
        if (!model.normalizer.empty()) {
            normalized = gap;
            normalize(model.normalizer, normalized, s.splitter.regex());
            gap = normalized;
        }
        s.split(model.normalized_added, gap, ids,
                [&](std::string_view rest, std::size_t at) { encode_gap(rest, place == 0 && at == 0); });
    });
}

}  // namespace keel
