// The way of a text through a tokenizer: added tokens, normalizer, added tokens again, pieces, ids.
#include <xxhash.h>

#include <algorithm>
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

    void merge_bytes(std::string_view piece, std::vector<std::int32_t>& ids) {
        const std::size_t first = ids.size();
        ids.resize(first + piece.size());
        for (std::size_t i = 0; i < piece.size(); ++i) {
            const auto b = static_cast<unsigned char>(piece[i]);
            if (model.byte_ids[b] < 0)
                fail(model.name, ": the vocabulary has no token for the byte ", static_cast<int>(b),
                     ", which the text contains; this tokenizer cannot encode it");
            ids[first + i] = model.byte_ids[b];
        }
        ids.resize(first + scratch.merge(model.merge_table, std::span(ids).subspan(first)));
    }

    bool encode_whole(std::string_view piece, std::vector<std::int32_t>& ids) const {
        if (!model.ignore_merges) return false;
        const auto whole = model.whole_pieces.find(piece);
        if (whole == model.whole_pieces.end()) return false;
        ids.push_back(whole->second);
        return true;
    }

    void compute(std::string_view piece, bool part, std::vector<std::int32_t>& ids) {
        if (!part && encode_whole(piece, ids)) return;
        switch (model.kind) {
            case TokenizerModel::Kind::byte_bpe: return merge_bytes(piece, ids);
            case TokenizerModel::Kind::char_bpe: return model.char_bpe.encode(piece, model.merge_table, scratch, ids, model.name);
            case TokenizerModel::Kind::unigram: return model.unigram.encode(piece, unigram, ids, model.name);
        }
    }

    // `part`: of a piece that was cut; with ignore_merges its ids may be others than those of a piece of this text.
    void encode_part(std::string_view piece, bool part, std::vector<std::int32_t>& ids) {
        if (cache.empty() || piece.size() > sizeof(Entry::piece)) return compute(piece, part, ids);
        const auto size = static_cast<std::uint8_t>(piece.size() | (part ? 0x80u : 0u));
        Entry& entry = cache[XXH3_64bits(piece.data(), piece.size()) & (cache_size - 1)];
        if (entry.size == size && std::memcmp(entry.piece, piece.data(), piece.size()) == 0) {
            ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
            return;
        }
        const std::size_t first = ids.size();
        compute(piece, part, ids);
        const std::size_t count = ids.size() - first;
        if (count > std::size(entry.ids)) return;
        entry.size = size;
        entry.count = static_cast<std::uint8_t>(count);
        std::memcpy(entry.piece, piece.data(), piece.size());
        std::copy(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), entry.ids);
    }

    void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) {
        if (model.spelled_pieces) {
            if (!read_spelling(piece, unspelled))
                fail(model.name, ": a pre-tokenizer behind ByteLevel brought in characters that spell no bytes");
            return encode_part(unspelled, false, ids);
        }
        const bool cut = model.kind == TokenizerModel::Kind::byte_bpe || (model.kind == TokenizerModel::Kind::char_bpe && model.char_bpe.may_cut());
        if (piece.size() <= sizeof(Entry::piece) || !cut) return encode_part(piece, false, ids);
        if (encode_whole(piece, ids)) return;
        while (!piece.empty()) {
            const std::size_t end = model.cuts.part_end(piece);
            encode_part(piece.substr(0, end), model.ignore_merges, ids);
            piece.remove_prefix(end);
        }
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
    : state_(new State{tokenizer.model(), special == SpecialText::parse, {}, {}, {}, {}, {}}) {
    if (cache) state_->cache.resize(State::cache_size);
}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;

void Encoder::encode(std::string_view text, std::vector<std::int32_t>& ids) {
    State& s = *state_;
    const TokenizerModel& model = s.model;
    const auto encode_gap = [&](std::string_view gap, bool first) {
        if (model.cutting == TokenizerModel::Cutting::scanner)
            return for_each_piece(model.pretokenizer, gap, [&](std::string_view piece) { s.encode_piece(piece, ids); });
        s.splitter.run(model.steps, gap, first, [&](std::string_view piece) { s.encode_piece(piece, ids); });
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
