#include "data/tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "data/tokenizer_model.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

void put(std::string& out, std::uint64_t value) {
    for (int i = 0; i < 8; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}
void put(std::string& out, std::string_view text) {
    put(out, static_cast<std::uint64_t>(text.size()));
    out += text;
}

// Everything that decides ids, in one order whatever the file's layout. Changing this changes every tokenizer's hash, and
// token files made before are refused.
std::uint64_t canonical_hash(const TokenizerModel& m) {
    std::string text = "keel tokenizer 1";
    put(text, std::string_view(pattern_text(m.pretokenizer.pattern)));
    put(text, static_cast<std::uint64_t>(m.pretokenizer.digits));
    put(text, static_cast<std::uint64_t>(m.normalization));
    put(text, static_cast<std::uint64_t>(m.ignore_merges));
    put(text, static_cast<std::uint64_t>(m.tokens.size()));
    for (const auto& t : m.tokens) {
        put(text, static_cast<std::uint64_t>(t.exists | t.in_vocab << 1 | t.spelt << 2));
        put(text, std::string_view(t.bytes));
    }
    put(text, static_cast<std::uint64_t>(m.merges.size()));
    for (const Merge& merge : m.merges) put(text, static_cast<std::uint64_t>(merge.left) << 32 | static_cast<std::uint32_t>(merge.right));
    std::vector<const AddedToken*> added;
    for (const AddedToken& t : m.added) added.push_back(&t);
    std::sort(added.begin(), added.end(), [](auto a, auto b) { return a->id < b->id; });
    for (const AddedToken* t : added) {
        put(text, std::string_view(t->content));
        put(text, static_cast<std::uint64_t>(t->id));
        put(text, static_cast<std::uint64_t>(t->single_word | t->lstrip << 1 | t->rstrip << 2 | t->normalized << 3));
    }
    return XXH3_64bits(text.data(), text.size());
}

// Whether cutting text before a space that follows an ASCII letter or digit could part this token or change its match.
bool survives_cuts(const AddedToken& token) {
    if (token.single_word || token.lstrip || token.rstrip) return false;
    const std::string& s = token.content;
    for (std::size_t i = 1; i < s.size(); ++i) {
        const auto a = static_cast<unsigned char>(s[i - 1]), b = static_cast<unsigned char>(s[i]);
        if (a < 128 && b < 128 && ascii_classes[b] == CharClass::space &&
            (ascii_classes[a] == CharClass::letter || ascii_classes[a] == CharClass::number))
            return false;
    }
    return true;
}

}  // namespace

void TokenizerModel::finish() {
    byte_ids.fill(-1);
    for (std::size_t id = 0; id < tokens.size(); ++id) {
        const Token& t = tokens[id];
        if (!t.in_vocab || !t.spelt) continue;
        if (t.bytes.size() == 1) byte_ids[static_cast<unsigned char>(t.bytes[0])] = static_cast<std::int32_t>(id);
        if (ignore_merges) whole_pieces.emplace(t.bytes, static_cast<std::int32_t>(id));
    }
    merge_table = MergeTable(merges);
    std::vector<AddedToken> raw, normalized;
    for (const AddedToken& t : added) {
        (t.normalized ? normalized : raw).push_back(t);
        if (t.normalized) normalized.back().content = normalize(t.content, normalization);
        cuttable = cuttable && survives_cuts(t);
    }
    raw_added = AddedTokenFinder(std::move(raw));
    normalized_added = AddedTokenFinder(std::move(normalized));
    hash = canonical_hash(*this);
}

Tokenizer::Tokenizer(TokenizerModel model) {
    model.finish();
    model_ = std::make_shared<const TokenizerModel>(std::move(model));
}

std::int64_t Tokenizer::vocab_size() const { return static_cast<std::int64_t>(model_->tokens.size()); }
std::uint64_t Tokenizer::hash() const { return model_->hash; }
const std::string& Tokenizer::name() const { return model_->name; }
std::optional<std::int32_t> Tokenizer::bos_id() const { return model_->bos; }
std::optional<std::int32_t> Tokenizer::eos_id() const { return model_->eos; }

std::optional<std::int32_t> Tokenizer::id(std::string_view token) const {
    for (const AddedToken& t : model_->added)
        if (t.content == token) return t.id;
    return std::nullopt;
}

bool Tokenizer::is_special(std::int32_t id) const {
    return id >= 0 && id < vocab_size() && model_->tokens[static_cast<std::size_t>(id)].special;
}

std::string_view Tokenizer::bytes(std::int32_t id) const {
    if (id < 0 || id >= vocab_size())
        fail("id ", id, " is not in the vocabulary of ", name(), " (0…", vocab_size() - 1, ")");
    return model_->tokens[static_cast<std::size_t>(id)].bytes;
}

void Tokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
    Encoder encoder(*this, SpecialText::parse, false);
    if (utf8_valid_prefix(text) == text.size()) return encoder.encode(text, ids);
    std::string repaired;
    append_repaired(text, repaired);
    encoder.encode(repaired, ids);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
    std::vector<std::int32_t> ids;
    encode(text, ids);
    return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
    std::string raw, text;
    for (const std::int32_t id : ids)
        if (const std::string_view b = bytes(id); !skip_special || !is_special(id)) raw += b;
    if (utf8_valid_prefix(raw) == raw.size()) return raw;
    append_repaired(raw, text);
    return text;
}

std::string Tokenizer::to_json() const { return tokenizer_json(*model_); }

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

    void merge(std::string_view piece, std::vector<std::int32_t>& ids) {
        if (model.ignore_merges)
            if (const auto whole = model.whole_pieces.find(piece); whole != model.whole_pieces.end()) {
                ids.push_back(whole->second);
                return;
            }
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

    void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) {
        if (cache.empty() || piece.size() > sizeof(Entry::piece)) return merge(piece, ids);
        Entry& entry = cache[XXH3_64bits(piece.data(), piece.size()) & (cache_size - 1)];
        if (entry.size == piece.size() && std::memcmp(entry.piece, piece.data(), piece.size()) == 0) {
            ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
            return;
        }
        const std::size_t first = ids.size();
        merge(piece, ids);
        const std::size_t count = ids.size() - first;
        if (count > std::size(entry.ids)) return;
        entry.size = static_cast<std::uint8_t>(piece.size());
        entry.count = static_cast<std::uint8_t>(count);
        std::memcpy(entry.piece, piece.data(), piece.size());
        std::copy(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), entry.ids);
    }

    // Calls body(gap) between the matches and appends the ids of the matches.
    template <class Body>
    void split(const AddedTokenFinder& finder, std::string_view text, std::vector<std::int32_t>& ids, Body&& body) {
        std::size_t at = 0;
        while (at < text.size()) {
            const auto match = finder.find(text, at, parse_special);
            if (match.begin > at) body(text.substr(at, match.begin - at));
            if (match.id >= 0) ids.push_back(match.id);
            at = match.end;
        }
    }
};

Encoder::Encoder(const Tokenizer& tokenizer, SpecialText special, bool cache)
    : state_(new State{tokenizer.model(), special == SpecialText::parse, {}, {}}) {
    if (cache) state_->cache.resize(State::cache_size);
}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;

void Encoder::encode(std::string_view text, std::vector<std::int32_t>& ids) {
    State& s = *state_;
    const TokenizerModel& model = s.model;
    const auto encode_gap = [&](std::string_view gap) {
        for_each_piece(model.pretokenizer, gap, [&](std::string_view piece) { s.encode_piece(piece, ids); });
    };
    s.split(model.raw_added, text, ids, [&](std::string_view gap) {
        if (model.normalization == Normalization::none) return s.split(model.normalized_added, gap, ids, encode_gap);
        s.split(model.normalized_added, normalize(gap, model.normalization), ids, encode_gap);
    });
}

std::string StreamDecoder::push(std::int32_t id) {
    const std::string_view bytes = tokenizer_.bytes(id);
    if (skip_special_ && tokenizer_.is_special(id)) return {};
    held_ += bytes;
    std::string out;
    std::size_t used;
    append_repaired(held_, out, used);
    held_.erase(0, used);
    return out;
}

std::string StreamDecoder::finish() {
    std::string out;
    append_repaired(held_, out);
    held_.clear();
    return out;
}

}  // namespace keel
