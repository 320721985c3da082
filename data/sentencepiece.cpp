// Reads a SentencePiece tokenizer.model (BPE and unigram). Encoding is our own (data/char_bpe.h, data/unigram.h), held to the
// ids of the SentencePiece library in the tests: a hostile file cannot harm it, and the binary needs no shared library.
#include <algorithm>
#include <cmath>
#include <map>

#include "data/protobuf_reader.h"
#include "data/tokenizer_model.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

enum PieceType : std::uint64_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
constexpr std::string_view marker = "\xe2\x96\x81";  // U+2581

struct Piece {
    std::string text;
    float score = 0;
    std::uint64_t type = normal;
};

struct Proto {
    std::vector<Piece> pieces;
    std::uint64_t model_type = 1;
    bool byte_fallback = false, whitespace_as_suffix = false;
    std::string unknown_surface = " \xe2\x81\x87 ", bos = "<s>", eos = "</s>";
    SentencePieceNormalizer::Rules rules;
    bool has_denormalizer = false;
};

Piece read_piece(std::string_view message, const std::string& name) {
    Piece piece;
    for (ProtobufReader r(message, name); r.next();) switch (r.field()) {
        case 1: piece.text = r.bytes(); break;
        case 2: piece.score = r.real(); break;
        case 3: piece.type = r.number(); break;
        default: break;
    }
    return piece;
}

void read_trainer(std::string_view message, const std::string& name, Proto& proto) {
    for (ProtobufReader r(message, name); r.next();) switch (r.field()) {
        case 3: proto.model_type = r.number(); break;
        case 24: proto.whitespace_as_suffix = r.flag(); break;
        case 35: proto.byte_fallback = r.flag(); break;
        case 44: proto.unknown_surface = r.bytes(); break;
        case 46: proto.bos = r.bytes(); break;
        case 47: proto.eos = r.bytes(); break;
        default: break;
    }
}

void read_normalizer(std::string_view message, const std::string& name, SentencePieceNormalizer::Rules& rules) {
    for (ProtobufReader r(message, name); r.next();) switch (r.field()) {
        case 2: rules.charsmap = r.bytes(); break;
        case 3: rules.add_dummy_prefix = r.flag(); break;
        case 4: rules.remove_extra_whitespaces = r.flag(); break;
        case 5: rules.escape_whitespaces = r.flag(); break;
        default: break;
    }
}

Proto read_proto(std::string_view file, const std::string& name) {
    Proto proto;
    for (ProtobufReader r(file, name); r.next();) switch (r.field()) {
        case 1: proto.pieces.push_back(read_piece(r.bytes(), name)); break;
        case 2: read_trainer(r.bytes(), name, proto); break;
        case 3: read_normalizer(r.bytes(), name, proto.rules); break;
        case 5: {
            SentencePieceNormalizer::Rules rules;
            read_normalizer(r.bytes(), name, rules);
            proto.has_denormalizer = !rules.charsmap.empty();
            break;
        }
        default: break;
    }
    return proto;
}

void check(const Proto& proto, const std::string& name) {
    if (proto.pieces.empty()) fail(name, " holds no pieces; it is no SentencePiece model");
    if (proto.pieces.size() > std::size_t{1} << 24) fail(name, " holds ", proto.pieces.size(), " pieces; at most ", 1 << 24, " are read");
    if (proto.model_type != 1 && proto.model_type != 2)
        fail(name, ": the SentencePiece model type ", proto.model_type, " is not supported; 1 (unigram) and 2 (BPE) are");
    if (proto.whitespace_as_suffix) fail(name, ": treat_whitespace_as_suffix is not supported");
    if (proto.has_denormalizer) fail(name, ": a denormalizer is not supported");
    std::map<std::string_view, std::size_t> seen;
    for (std::size_t id = 0; id < proto.pieces.size(); ++id) {
        const Piece& p = proto.pieces[id];
        if (p.text.empty()) fail(name, ": piece ", id, " is empty");
        if (utf8_valid_prefix(p.text) != p.text.size()) fail(name, ": piece ", id, " is not valid UTF-8");
        if (p.type < normal || p.type > byte) fail(name, ": piece ", id, " has the type ", p.type, ", which is none of 1 to 6");
        if (p.type == unused && proto.model_type == 2) fail(name, ": piece ", id, " is unused, which is not supported with BPE");
        if (!std::isfinite(p.score)) fail(name, ": the score of piece ", id, " is not finite");
        if (const auto [at, is_new] = seen.emplace(p.text, id); !is_new)
            fail(name, ": the pieces ", at->second, " and ", id, " are both \"", p.text, "\"");
    }
}

std::string with_spaces(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const bool space = text.substr(at).starts_with(marker);
        out += space ? ' ' : text[at];
        at += space ? marker.size() : 1;
    }
    return out;
}

void add_tokens(const Proto& proto, TokenizerModel& model) {
    for (std::size_t id = 0; id < proto.pieces.size(); ++id) {
        const Piece& p = proto.pieces[id];
        TokenizerModel::Token t{.bytes = with_spaces(p.text), .text = p.text, .score = static_cast<double>(p.score), .exists = true, .in_vocab = true};
        const auto this_id = static_cast<std::int32_t>(id);
        if (p.type == unknown) {
            if (model.unknown) fail(model.name, ": the pieces ", *model.unknown, " and ", id, " are both the unknown one");
            model.unknown = this_id;
            t.bytes = proto.unknown_surface;
        } else if (p.type == control) {
            t.special = t.silent = true;
            t.bytes = p.text;
            if (p.text == proto.bos) model.bos = this_id;
            if (p.text == proto.eos) model.eos = this_id;
        } else if (p.type == byte) {
            unsigned value = 256;
            for (unsigned b = 0; b < 256; ++b) {
                char text[8];
                std::snprintf(text, sizeof text, "<0x%02X>", b);
                if (p.text == text) value = b;
            }
            if (value == 256) fail(model.name, ": piece ", id, " is \"", p.text, "\", which names no byte");
            t.is_byte = true;
            t.bytes.assign(1, static_cast<char>(static_cast<unsigned char>(value)));
        }
        model.tokens.push_back(std::move(t));
    }
    if (!model.unknown) fail(model.name, ": no piece is the unknown one");
}

void make_bpe(const Proto& proto, const std::array<std::int32_t, 256>& byte_tokens, TokenizerModel& model) {
    std::vector<float> scores;
    for (const Piece& p : proto.pieces)
        if (p.type == normal || p.type == user_defined) scores.push_back(p.score);
    std::sort(scores.begin(), scores.end(), std::greater<>());
    scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
    std::vector<RankedToken> ranked;
    std::unordered_map<std::uint32_t, std::int32_t> characters;
    CharBpe::Rules rules;
    rules.byte_tokens = byte_tokens;
    rules.unknown = model.unknown;
    rules.fuse_unknown = true;
    rules.bytes_before_merging = false;
    for (std::size_t i = 0; i < proto.pieces.size(); ++i) {
        const Piece& p = proto.pieces[i];
        if (p.type != normal && p.type != user_defined) continue;
        const auto id = static_cast<std::int32_t>(i);
        const auto rank = std::lower_bound(scores.begin(), scores.end(), p.score, std::greater<>()) - scores.begin();
        ranked.push_back({p.text, id, static_cast<std::uint32_t>(rank)});
        if (utf8_at(p.text, 0).size == p.text.size()) characters.emplace(utf8_at(p.text, 0).code, id);
        if (p.type != user_defined) continue;
        rules.whole.emplace_back(p.text, id);
        model.cuts.add_whole(p.text);
    }
    model.merge_table = merges_of_tokens(ranked, false, model.cuts, model.name);
    model.char_bpe = CharBpe(std::move(rules), characters);
}

}  // namespace

TokenizerModel parse_sentencepiece(std::string_view file, const std::string& name) {
    Proto proto = read_proto(file, name);
    check(proto, name);
    TokenizerModel model;
    model.name = name;
    model.format = "SentencePiece tokenizer.model";
    model.kind = proto.model_type == 2 ? TokenizerModel::Kind::char_bpe : TokenizerModel::Kind::unigram;
    model.cutting = TokenizerModel::Cutting::steps;
    model.ranked = true;
    model.byte_fallback = proto.byte_fallback;
    model.fuse_unknown = true;
    add_tokens(proto, model);
    std::array<std::int32_t, 256> byte_tokens;
    byte_tokens.fill(-1);
    if (proto.byte_fallback)
        for (std::size_t id = 0; id < model.tokens.size(); ++id)
            if (model.tokens[id].is_byte) byte_tokens[static_cast<unsigned char>(model.tokens[id].bytes[0])] = static_cast<std::int32_t>(id);
    if (proto.byte_fallback && std::count(byte_tokens.begin(), byte_tokens.end(), -1) > 0)
        fail(name, ": byte_fallback is on, but some of the 256 byte pieces are missing");
    for (const Piece& p : proto.pieces)
        if (p.type == user_defined) proto.rules.user_defined.push_back(p.text);
    if (model.kind == TokenizerModel::Kind::char_bpe) {
        make_bpe(proto, byte_tokens, model);
    } else {
        Unigram::Rules rules;
        rules.byte_tokens = byte_tokens;
        rules.unknown = model.unknown;
        rules.float_sums = true;
        std::vector<Unigram::Token> tokens;
        for (std::size_t id = 0; id < proto.pieces.size(); ++id) {
            const Piece& p = proto.pieces[id];
            tokens.push_back({p.text, static_cast<std::int32_t>(id), static_cast<double>(p.score),
                              p.type == normal || p.type == user_defined, p.type == user_defined});
        }
        model.unigram = Unigram(std::move(rules), tokens);
    }
    model.decode = {.kind = DecodeRules::Kind::sentencepiece,
                    .lead = " ",
                    .lead_count = 0,
                    .drop_marker = proto.rules.add_dummy_prefix || proto.rules.remove_extra_whitespaces,
                    .drop_all_markers = proto.rules.remove_extra_whitespaces};
    NormalizerStep step{.kind = NormalizerStep::Kind::sentencepiece};
    step.sentencepiece = std::make_shared<const SentencePieceNormalizer>(std::move(proto.rules), name);
    model.normalizer.push_back(std::move(step));
    model.source_name = "tokenizer.model";
    model.source = file;
    return model;
}

}  // namespace keel
