#include "data/token_decoder.h"

#include "data/tokenizer_model.h"
#include "data/utf8.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd", marker = "\xe2\x96\x81";

}  // namespace

TokenDecoder::TokenDecoder(const TokenizerModel& model, bool skip_special)
    : model_(&model), skip_special_(skip_special), lead_left_(model.decode.lead_count) {}

void TokenDecoder::emit(std::string_view text, std::string& out) {
    for (; lead_left_ > 0 && text.starts_with(model_->decode.lead); --lead_left_) text.remove_prefix(model_->decode.lead.size());
    if (text.empty()) return;
    lead_left_ = 0;
    any_ = true;
    out += text;
}

// SentencePiece reads a run of byte tokens character by character, and each byte that begins none becomes one U+FFFD.
void TokenDecoder::drain(bool all, std::string& out) {
    while (!held_.empty()) {
        const std::size_t valid = utf8_valid_prefix(held_);
        emit(std::string_view(held_).substr(0, valid), out);
        held_.erase(0, valid);
        bool incomplete = false;
        if (held_.empty()) return;
        utf8_bad_length(held_, incomplete);
        if (incomplete && !all) return;
        emit(replacement, out);
        held_.erase(0, 1);
    }
}

void TokenDecoder::end_run(std::string& out) {
    if (held_.empty()) return;
    if (model_->decode.kind == DecodeRules::Kind::sentencepiece) return drain(true, out);
    if (utf8_valid_prefix(held_) == held_.size()) {
        emit(held_, out);
    } else {
        for (std::size_t i = 0; i < held_.size(); ++i) emit(replacement, out);
    }
    held_.clear();
}

void TokenDecoder::push(std::int32_t id, std::string& out) {
    if (id < 0 || static_cast<std::size_t>(id) >= model_->tokens.size())
        fail("id ", id, " is not in the vocabulary of ", model_->name, " (0…", model_->tokens.size() - 1, ")");
    const TokenizerModel::Token& token = model_->tokens[static_cast<std::size_t>(id)];
    const DecodeRules& rules = model_->decode;
    if (skip_special_ && token.special) return;
    if (rules.kind == DecodeRules::Kind::bytes) {
        held_ += token.bytes;
        std::size_t used;
        append_repaired(held_, out, used);
        held_.erase(0, used);
        return;
    }
    if (token.is_byte) {
        held_ += token.bytes;
        if (rules.kind == DecodeRules::Kind::sentencepiece) drain(false, out);
        return;
    }
    end_run(out);
    std::string_view text = token.bytes;
    if (rules.kind == DecodeRules::Kind::sentencepiece) {
        if (marker_dropped_ || any_) at_start_ = false;
        marker_dropped_ = false;
        if (token.silent) return;
        if (at_start_ && rules.drop_marker && token.text.starts_with(marker)) {
            text.remove_prefix(1);  // the space it became
            marker_dropped_ = !rules.drop_all_markers;
        }
    }
    emit(text, out);
}

void TokenDecoder::finish(std::string& out) {
    if (model_->decode.kind == DecodeRules::Kind::bytes) append_repaired(held_, out);
    else end_run(out);
    held_.clear();
    *this = TokenDecoder(*model_, skip_special_);
}

}  // namespace keel
