// The model of a tokenizer.json: BPE over bytes or characters, or Unigram.
#include "data/tokenizer_json.h"

#include <cmath>

namespace keel {

using Json = TokenizerJson;

void TokenizerJsonReader::read_model(const Json& m) {
    // Old files name no type; a Unigram's vocabulary is a list, a BPE's an object.
    const std::string type = absent(m, "type") ? "BPE" : string(m, "type", "model");
    if (type == "BPE") return read_bpe(m);
    if (type == "Unigram") return read_unigram(m);
    refuse("the model \"", type, "\" is not supported; BPE and Unigram are");
}

void TokenizerJsonReader::read_bpe(const Json& m) {
    model.kind = bytes ? TokenizerModel::Kind::byte_bpe : TokenizerModel::Kind::char_bpe;
    if (!absent(m, "dropout") && !(m.at("dropout").is_number() && m.at("dropout").get<double>() == 0))
        refuse("\"dropout\" is ", m.at("dropout").dump(), "; ids would be random");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
        if (!absent(m, key) && m.at(key) != "") refuse("\"", key, "\" is ", m.at(key).dump(), "; only none is supported");
    model.byte_fallback = flag(m, "byte_fallback", false);
    model.fuse_unknown = flag(m, "fuse_unk", false);
    model.ignore_merges = flag(m, "ignore_merges", false);
    read_vocab(object(m, "vocab"));
    read_merges(array(m, "merges"));
    const bool named = !absent(m, "unk_token") && m.at("unk_token") != "";
    if (bytes) {
        if (named || model.byte_fallback) check_all_bytes();
        model.byte_fallback = model.fuse_unknown = false;  // with all bytes nothing is unknown
    } else if (named) {
        const std::string unknown = string(m, "unk_token", "the model");
        if (!vocab.contains(unknown)) refuse("the unk_token \"", unknown, "\" is not in the vocabulary");
        model.unknown = vocab.at(unknown);
    }
}

void TokenizerJsonReader::check_all_bytes() const {
    for (int b = 0; b < 256; ++b)
        if (!vocab.contains(spell_bytes(std::string(1, static_cast<char>(b)))))
            refuse("the vocabulary lacks the byte ", b, " and has an unk_token or byte_fallback; that is not supported");
}

void TokenizerJsonReader::find_byte_tokens(std::array<std::int32_t, 256>& ids) const {
    constexpr const char* hex = "0123456789ABCDEF";
    for (unsigned b = 0; b < 256; ++b) {
        const auto found = vocab.find(concat("<0x", hex[b >> 4], hex[b & 15], ">"));
        if (found != vocab.end()) ids[b] = found->second;
    }
}

// Makes room for `id`. A few ids far apart would be gigabytes of nothing, so holes are limited.
TokenizerModel::Token& TokenizerJsonReader::slot(std::int32_t id, const std::string& token, std::size_t entries) {
    if (static_cast<std::size_t>(id) > entries * 4 + 65536)
        refuse("the id ", id, " of \"", token, "\" is far beyond the ", entries, " tokens there are");
    if (static_cast<std::size_t>(id) >= model.tokens.size()) model.tokens.resize(static_cast<std::size_t>(id) + 1);
    return model.tokens[static_cast<std::size_t>(id)];
}

void TokenizerJsonReader::read_vocab(const Json& entries) {
    if (entries.empty()) refuse("the vocabulary is empty");
    for (const auto& [token, value] : entries.items()) {
        const std::int32_t id = token_id(value, token);
        auto& t = slot(id, token, entries.size());
        if (t.exists) refuse("id ", id, " belongs to \"", token, "\" and to another token");
        t.exists = t.in_vocab = true;
        t.spelt = bytes && read_spelling(token, t.bytes);
        if (!t.spelt) t.bytes = token;
        if (!bytes) t.text = token;
        vocab.emplace(token, id);
    }
}

void TokenizerJsonReader::read_merges(const Json& list) {
    model.merges.reserve(list.size());
    std::int64_t line = 0;
    for (const Json& entry : list) {
        std::string left, right;
        if (entry.is_string()) {
            const std::string both = entry.get<std::string>();
            const std::size_t space = both.find(' ');
            if (line == 0 && both.starts_with("#version")) continue;
            if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
                refuse("merge ", line, " is \"", both, "\", not two parts with one space between");
            left = both.substr(0, space), right = both.substr(space + 1);
        } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
            left = entry[0].get<std::string>(), right = entry[1].get<std::string>();
        } else {
            refuse("merge ", line, " is neither a text nor an array of two texts");
        }
        const auto find = [&](const std::string& part) {
            const auto at = vocab.find(part);
            if (at == vocab.end())
                refuse("merge ", line, ", \"", left, "\" + \"", right, "\", needs \"", part, "\", which is not in the vocabulary");
            return at->second;
        };
        model.merges.push_back({find(left), find(right), find(left + right)});
        ++line;
    }
}

// Only tokens spelt in the byte alphabet stand for bytes; a merge of others would decode to another text.
void TokenizerJsonReader::check_merges_spelt() const {
    const auto& tokens = model.tokens;
    for (std::size_t rank = 0; rank < model.merges.size(); ++rank) {
        const Merge& m = model.merges[rank];
        if (!tokens[static_cast<std::size_t>(m.left)].spelt || !tokens[static_cast<std::size_t>(m.right)].spelt)
            refuse("merge ", rank, " joins a token that is not spelt in the byte alphabet; not a byte-level tokenizer");
    }
}

void TokenizerJsonReader::make_char_bpe() {
    CharBpe::Rules rules;
    if (model.byte_fallback) find_byte_tokens(rules.byte_tokens);
    rules.unknown = model.unknown;
    rules.fuse_unknown = model.fuse_unknown;
    std::unordered_map<std::uint32_t, std::int32_t> characters;
    for (const auto& [token, id] : vocab)
        if (!token.empty() && utf8_at(token, 0).size == token.size()) characters.emplace(utf8_at(token, 0).code, id);
    model.char_bpe = CharBpe(std::move(rules), characters);
}

void TokenizerJsonReader::read_unigram(const Json& m) {
    if (bytes) refuse("the model \"Unigram\" behind ByteLevel is not supported");
    model.kind = TokenizerModel::Kind::unigram;
    model.byte_fallback = flag(m, "byte_fallback", false);
    model.fuse_unknown = true;
    const Json& entries = array(m, "vocab");
    if (entries.empty()) refuse("the vocabulary is empty");
    std::vector<Unigram::Token> tokens;
    for (const Json& entry : entries) {
        const auto id = static_cast<std::int32_t>(tokens.size());
        if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
            refuse("entry ", id, " of the vocabulary is not a text and a score");
        const std::string text = entry[0].get<std::string>();
        const double score = entry[1].get<double>();
        if (!std::isfinite(score)) refuse("the score of \"", text, "\" is not finite");
        if (!vocab.emplace(text, id).second) refuse("the token \"", text, "\" occurs twice");
        auto& t = slot(id, text, entries.size());
        t.exists = t.in_vocab = true;
        t.bytes = t.text = text;
        t.score = score;
        tokens.push_back({text, id, score});
    }
    Unigram::Rules rules;
    if (!absent(m, "unk_id")) {
        const std::int32_t unknown = token_id(m.at("unk_id"), "unk_id");
        if (static_cast<std::size_t>(unknown) >= tokens.size()) refuse("the unk_id ", unknown, " is not in the vocabulary");
        rules.unknown = model.unknown = unknown;
    }
    if (model.byte_fallback) find_byte_tokens(rules.byte_tokens);
    model.unigram = Unigram(std::move(rules), tokens);
}

}  // namespace keel
