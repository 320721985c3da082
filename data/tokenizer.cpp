#include "data/tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

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

// What no tokenizer of the first kind had (byte-level BPE with one of the three patterns); "" for those.
std::string canonical_rest(const TokenizerModel& m) {
    const bool one_form = m.normalizer.empty() || (m.normalizer.size() == 1 && m.normalizer[0].kind == NormalizerStep::Kind::unicode);
    if (m.kind == TokenizerModel::Kind::byte_bpe && m.cutting == TokenizerModel::Cutting::scanner && one_form && !m.ranked) return {};
    std::string out = concat("kind ", static_cast<int>(m.kind), static_cast<int>(m.cutting), m.spelled_pieces, m.ranked,
                             m.byte_fallback, m.fuse_unknown, ' ', m.unknown.value_or(-1), ' ');
    return out + canonical(m.steps) + canonical(m.normalizer);
}

// Everything that decides ids, in one order whatever the file's layout. Changing this changes every tokenizer's hash, and
// token files made before are refused.
std::uint64_t canonical_hash(const TokenizerModel& m) {
    std::string text = "keel tokenizer 1";
    const std::string rest = canonical_rest(m);
    put(text, std::string_view(m.cutting == TokenizerModel::Cutting::scanner ? pattern_text(m.pretokenizer.pattern) : ""));
    put(text, static_cast<std::uint64_t>(m.pretokenizer.digits));
    put(text, static_cast<std::uint64_t>(rest.empty() && !m.normalizer.empty() ? m.normalizer[0].form : Normalization::none));
    put(text, static_cast<std::uint64_t>(m.ignore_merges));
    put(text, static_cast<std::uint64_t>(m.tokens.size()));
    for (const auto& t : m.tokens) {
        put(text, static_cast<std::uint64_t>(t.exists | t.in_vocab << 1 | t.spelt << 2));
        put(text, std::string_view(t.text.empty() ? t.bytes : t.text));
        if (m.kind == TokenizerModel::Kind::unigram || m.ranked) put(text, std::bit_cast<std::uint64_t>(t.score));
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
    text += rest;
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

bool normalizer_survives_cuts(const std::vector<NormalizerStep>& steps) {
    return std::all_of(steps.begin(), steps.end(), [](const NormalizerStep& s) { return s.kind == NormalizerStep::Kind::unicode; });
}

}  // namespace

void TokenizerModel::finish() {
    std::array<std::int32_t, 256> byte_ids;
    byte_ids.fill(-1);
    std::vector<std::uint32_t> characters;
    std::vector<WholePieces::Piece> whole;
    for (std::size_t id = 0; id < tokens.size(); ++id) {
        const Token& t = tokens[id];
        if (!t.in_vocab) continue;
        if (t.spelt && t.bytes.size() == 1) byte_ids[static_cast<unsigned char>(t.bytes[0])] = static_cast<std::int32_t>(id);
        if (t.spelt && t.bytes.size() > 1 && t.bytes.size() <= 4 && utf8_valid_prefix(t.bytes) == t.bytes.size())
            if (const Utf8Char c = utf8_at(t.bytes, 0); c.size == t.bytes.size()) characters.push_back(c.code);
        if (ignore_merges && (t.spelt || kind != Kind::byte_bpe))
            whole.push_back({kind == Kind::byte_bpe ? t.bytes : t.text, static_cast<std::int32_t>(id)});
    }
    if (!ranked) {
        merge_table = MergeTable(merges);
        const auto text = [&](std::int32_t id) -> std::string_view {
            const Token& t = tokens[static_cast<std::size_t>(id)];
            return t.spelt ? t.bytes : t.text;
        };
        for (const Merge& m : merges) cuts.add_merge(text(m.left), text(m.right));
    }
    if (kind == Kind::byte_bpe) {
        byte_symbols = ByteSymbols(byte_ids, characters, merge_table);
        std::erase_if(whole, [&, ids = std::vector<std::int32_t>(), merging = BpeScratch()](const WholePieces::Piece& piece) mutable {
            ids.clear();
            if (!byte_symbols.can_spell(piece.text)) return false;
            byte_symbols.append(piece.text, utf8_valid_prefix(piece.text) == piece.text.size(), cuts, ids, name);
            return merging.merge(merge_table, ids) == 1 && ids[0] == piece.id;
        });
    }
    whole_pieces = WholePieces(std::move(whole));
    std::vector<AddedToken> raw, normal;
    RegexScratch scratch;
    cuttable = kind == Kind::byte_bpe && cutting == Cutting::scanner && normalizer_survives_cuts(normalizer);
    for (const AddedToken& t : added) {
        (t.normalized ? normal : raw).push_back(t);
        if (t.normalized) normalize(normalizer, normal.back().content, scratch);
        cuttable = cuttable && survives_cuts(t);
    }
    const auto usual = [&](std::initializer_list<const char*> names, std::optional<std::int32_t>& id) {
        for (const char* name_of : names)
            for (const AddedToken& t : added)
                if (!id && t.content == name_of) id = t.id;
    };
    usual({"<|endoftext|>", "<|end_of_text|>", "</s>"}, eos);
    usual({"<|begin_of_text|>", "<s>"}, bos);
    raw_added = AddedTokenFinder(std::move(raw));
    normalized_added = AddedTokenFinder(std::move(normal));
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

std::string Tokenizer::description() const {
    const TokenizerModel& m = *model_;
    std::string what = m.kind == TokenizerModel::Kind::byte_bpe ? "byte-level BPE" : m.kind == TokenizerModel::Kind::char_bpe ? "BPE" : "Unigram";
    if (m.byte_fallback) what += " with byte fallback";
    return what + ", from " + m.format;
}

std::optional<std::int32_t> Tokenizer::id(std::string_view token) const {
    for (const AddedToken& t : model_->added)
        if (t.content == token) return t.id;
    for (std::size_t i = 0; i < model_->tokens.size(); ++i)
        if (model_->tokens[i].special && model_->tokens[i].text == token) return static_cast<std::int32_t>(i);
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
    TokenDecoder decoder(*model_, skip_special);
    std::string text;
    for (const std::int32_t id : ids) decoder.push(id, text);
    decoder.finish(text);
    return text;
}

Tokenizer::File Tokenizer::file() const {
    if (!model_->source_name.empty()) return {model_->source_name, model_->source};
    return {"tokenizer.json", tokenizer_json(*model_)};
}

std::string Tokenizer::to_json() const {
    File f = file();
    return f.name == "tokenizer.json" ? std::move(f.content) : std::string();
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) { return Tokenizer(read_tokenizer(path)); }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), decoder_(std::make_unique<TokenDecoder>(tokenizer_.model(), skip_special)) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(std::int32_t id) {
    std::string out;
    decoder_->push(id, out);
    return out;
}

std::string StreamDecoder::finish() {
    std::string out;
    decoder_->finish(out);
    return out;
}

}  // namespace keel
