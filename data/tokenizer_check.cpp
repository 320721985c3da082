#include "data/tokenizer_check.h"

#include "data/tokenizer_model.h"
#include "kernels/base/error.h"

namespace keel {

TokenizerCheck check_tokenizer(const Tokenizer& tokenizer, std::size_t keep) {
    const TokenizerModel& model = tokenizer.model();
    TokenizerCheck check;
    Encoder encoder(tokenizer);
    BpeScratch scratch;
    Unigram::Scratch unigram;
    std::vector<std::int32_t> ids;
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
        const TokenizerModel::Token& token = model.tokens[static_cast<std::size_t>(id)];
        if (!token.exists) {
            ++check.holes;
            continue;
        }
        ++check.ids;
        if (token.special || id == model.unknown) {
            ++check.special;
            continue;
        }
        if (token.is_byte || utf8_valid_prefix(token.bytes) != token.bytes.size()) {
            ++check.part_of_character;
            continue;
        }
        // What the text is at the beginning of all: there a prefix may be dropped, and encoding puts it back.
        const std::string text = tokenizer.decode(std::span(&id, 1));
        ids.clear();
        encoder.encode(text, ids);
        if (const std::string back = tokenizer.decode(ids); back != text) {
            if (check.lost_count++; check.lost.size() < keep) check.lost.push_back({id, text, back});
            continue;
        }
        // Within a word no prefix comes before it: there the model alone tells whether anything makes this id.
        if (model.kind != TokenizerModel::Kind::byte_bpe) {
            ids.clear();
            if (model.kind == TokenizerModel::Kind::unigram) model.unigram.encode(token.text, unigram, ids, model.name);
            else model.char_bpe.encode(token.text, model.merge_table, scratch, ids, model.name);
        }
        if (ids.size() == 1 && ids[0] == id) ++check.round_trips;
        else if (check.several++; check.unreachable.size() < keep) check.unreachable.push_back(id);
    }
    return check;
}

std::string cutting_in_words(const Tokenizer& tokenizer) {
    const TokenizerModel& m = tokenizer.model();
    std::string words;
    const auto add = [&](const std::string& word) { words += (words.empty() ? "" : ", then ") + word; };
    if (m.cutting == TokenizerModel::Cutting::scanner) {
        if (m.pretokenizer.digits != Digits::together) add(m.pretokenizer.digits == Digits::individual ? "single digits" : "runs of digits");
        add(concat("the ", pattern_name(m.pretokenizer.pattern), " pattern"));
        return words;
    }
    for (const SplitStep& s : m.steps) switch (s.kind) {
        case SplitStep::Kind::scanner: add(concat("the ", pattern_name(s.pattern), " pattern")); break;
        case SplitStep::Kind::regex: add("the pattern " + s.regex->pattern()); break;
        case SplitStep::Kind::text: add("the literal text \"" + s.text + "\""); break;
        case SplitStep::Kind::digits: add(s.behavior == SplitBehavior::isolated ? "single digits" : "runs of digits"); break;
        case SplitStep::Kind::punctuation: add("punctuation"); break;
        case SplitStep::Kind::whitespace: add("words"); break;
        case SplitStep::Kind::prefix_space: add("a space in front"); break;
        case SplitStep::Kind::metaspace: add("spaces as " + s.text + (s.cut ? ", cut before each" : "")); break;
        case SplitStep::Kind::spell: add("bytes"); break;
    }
    return words.empty() ? "nothing: a text is one piece" : words;
}

}  // namespace keel
