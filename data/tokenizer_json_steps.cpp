// The steps of a tokenizer.json: normalizers, pre-tokenizers, decoders.
#include <algorithm>

#include "data/tokenizer_json.h"

namespace keel {

using Json = TokenizerJson;

// {"Regex": …} is a pattern; {"String": …} is literal text, also where it looks like one, for models were trained with that.
void TokenizerJsonReader::read_pattern(const Json& parent, const std::string& what, std::string& text,
                                       std::shared_ptr<const Regex>& regex) const {
    const Json& pattern = object(parent, "pattern");
    if (pattern.contains("Regex") == pattern.contains("String")) refuse("the pattern of ", what, " is neither a Regex nor a String");
    text = string(pattern, pattern.contains("Regex") ? "Regex" : "String", "the pattern of " + what);
    if (text.empty()) refuse("the pattern of ", what, " is empty");
    if (pattern.contains("Regex")) regex = std::make_shared<const Regex>(text, RegexLanguage::oniguruma, name);
}

void TokenizerJsonReader::read_normalizer(const Json& file) {
    if (absent(file, "normalizer")) return;
    for_each_component(file.at("normalizer"), "normalizer", "normalizers", [&](const Json& c) {
        const std::string type = string(c, "type", "normalizer");
        NormalizerStep step;
        const std::unordered_map<std::string, Normalization> forms{{"NFC", Normalization::nfc}, {"NFD", Normalization::nfd},
                                                                   {"NFKC", Normalization::nfkc}, {"NFKD", Normalization::nfkd}};
        if (const auto form = forms.find(type); form != forms.end()) {
            step.form = form->second;
        } else if (type == "Replace") {
            read_pattern(c, "Replace", step.pattern, step.regex);
            step.kind = step.regex ? NormalizerStep::Kind::replace_regex : NormalizerStep::Kind::replace_text;
            step.content = string(c, "content", "Replace");
        } else if (type == "Prepend") {
            step.kind = NormalizerStep::Kind::prepend;
            step.content = string(c, "prepend", "Prepend");
        } else if (type == "Strip") {
            step.kind = NormalizerStep::Kind::strip;
            step.left = flag(c, "strip_left", true);
            step.right = flag(c, "strip_right", true);
        } else {
            refuse("the normalizer \"", type, "\" is not supported; NFC, NFD, NFKC, NFKD, Replace, Prepend and Strip are");
        }
        model.normalizer.push_back(std::move(step));
    });
}

void TokenizerJsonReader::add_split(const Json& c) {
    SplitStep step;
    const std::unordered_map<std::string, SplitBehavior> behaviors{{"Isolated", SplitBehavior::isolated}, {"Removed", SplitBehavior::removed},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous}, {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous}};
    const std::string behavior = string(c, "behavior", "Split");
    if (!behaviors.contains(behavior)) refuse("Split has the behavior \"", behavior, "\", which is none of the five there are");
    step.behavior = behaviors.at(behavior);
    step.invert = flag(c, "invert", false);
    read_pattern(c, "Split", step.text, step.regex);
    step.kind = step.regex ? SplitStep::Kind::regex : SplitStep::Kind::text;
    // The scanners leave nothing between their matches, so that all behaviors but these two would act on nothing.
    if (const auto known = step.regex ? pattern_of(step.text) : std::nullopt;
        known && step.behavior == SplitBehavior::isolated && !step.invert) {
        step.kind = SplitStep::Kind::scanner;
        step.pattern = *known;
        step.regex.reset();
    }
    model.steps.push_back(std::move(step));
}

void TokenizerJsonReader::add_metaspace(const Json& c) {
    SplitStep step{.kind = SplitStep::Kind::metaspace, .behavior = SplitBehavior::merged_with_next};
    step.text = string(c, "replacement", "Metaspace");
    if (step.text.empty() || utf8_at(step.text, 0).size != step.text.size()) refuse("the replacement of Metaspace is not one character");
    const std::unordered_map<std::string, SplitStep::Prepend> schemes{
        {"always", SplitStep::Prepend::always}, {"first", SplitStep::Prepend::first}, {"never", SplitStep::Prepend::never}};
    const bool named = !absent(c, "prepend_scheme");
    if (named) {
        const std::string scheme = string(c, "prepend_scheme", "Metaspace");
        if (!schemes.contains(scheme)) refuse("Metaspace has the prepend_scheme \"", scheme, "\"; there are always, first and never");
        step.prepend = schemes.at(scheme);
    }
    if (!flag(c, "add_prefix_space", true)) {  // what older files say
        if (named && step.prepend != SplitStep::Prepend::never) refuse("Metaspace has add_prefix_space false and another prepend_scheme");
        step.prepend = SplitStep::Prepend::never;
    }
    step.cut = flag(c, "split", true);
    model.steps.push_back(std::move(step));
}

void TokenizerJsonReader::read_pre_tokenizer(const Json& file) {
    std::vector<SplitStep>& steps = model.steps;
    const auto add = [&](SplitStep::Kind kind, SplitBehavior behavior) {
        steps.push_back({.kind = kind, .behavior = behavior});
    };
    if (!absent(file, "pre_tokenizer"))
        for_each_component(file.at("pre_tokenizer"), "pre_tokenizer", "pretokenizers", [&](const Json& c) {
            const std::string type = string(c, "type", "pre_tokenizer");
            if (type == "ByteLevel") {
                if (bytes) refuse("there are two ByteLevel pre_tokenizers; bytes cannot be spelt twice");
                bytes = true;
                if (flag(c, "add_prefix_space", true)) add(SplitStep::Kind::prefix_space, SplitBehavior::isolated);
                if (flag(c, "use_regex", true)) add(SplitStep::Kind::scanner, SplitBehavior::isolated);
                add(SplitStep::Kind::spell, SplitBehavior::isolated);
            } else if (type == "Digits") {
                add(SplitStep::Kind::digits, flag(c, "individual_digits", false) ? SplitBehavior::isolated : SplitBehavior::contiguous);
            } else if (type == "Split") {
                add_split(c);
            } else if (type == "Punctuation") {
                Json split = c;
                split["pattern"] = {{"String", "-"}};  // only the behavior is wanted
                if (absent(split, "behavior")) split["behavior"] = "Isolated";
                add_split(split);
                steps.back() = {.kind = SplitStep::Kind::punctuation, .behavior = steps.back().behavior};
            } else if (type == "Whitespace") {
                add(SplitStep::Kind::whitespace, SplitBehavior::removed);
            } else if (type == "Metaspace") {
                add_metaspace(c);
            } else {
                refuse("the pre_tokenizer \"", type, "\" is not supported; ByteLevel, Split, Digits, Metaspace, Punctuation and"
                       " Whitespace are");
            }
        });
    // The forms in common use have a faster way: an optional Digits, one of the three patterns, bytes.
    const bool bytes_last = bytes && steps.back().kind == SplitStep::Kind::spell;
    if (bytes_last) steps.pop_back();
    const std::size_t digits = !steps.empty() && steps[0].kind == SplitStep::Kind::digits ? 1 : 0;
    if (bytes_last && steps.size() == digits + 1 && steps[digits].kind == SplitStep::Kind::scanner) {
        model.pretokenizer.pattern = steps[digits].pattern;
        if (digits == 1)
            model.pretokenizer.digits = steps[0].behavior == SplitBehavior::isolated ? Digits::individual : Digits::runs;
        steps.clear();
        return;
    }
    model.cutting = TokenizerModel::Cutting::steps;
    model.spelled_pieces = bytes && !bytes_last;
}

// What each token is in a text follows from its name and the decoders before Fuse. Behind it only the beginning of the text
// may change, or text could not be shown as it comes.
void TokenizerJsonReader::read_decoder(const Json& file) {
    if (absent(file, "decoder")) refuse("there is no decoder; tokens could not be turned back into text");
    bool any_bytes = false, fallback = false, fused = false;
    DecodeRules& rules = model.decode;
    rules.kind = DecodeRules::Kind::text;
    RegexScratch scratch;
    const auto each = [&](const std::string& type, auto&& change) {
        if (fused || any_bytes) refuse("the decoder \"", type, "\" comes behind Fuse or ByteLevel, where it is not supported");
        for (auto& t : model.tokens)
            if (!t.is_byte || !fallback) change(t.bytes);
    };
    if (!bytes)
        for (auto& t : model.tokens) t.bytes = t.text;
    for_each_component(file.at("decoder"), "decoder", "decoders", [&](const Json& c) {
        const std::string type = string(c, "type", "decoder");
        if (type == "ByteLevel") {
            if (!bytes || fallback || fused) refuse("the decoder \"ByteLevel\" does not fit the other parts");
            any_bytes = true;
            rules.kind = DecodeRules::Kind::bytes;
        } else if (type == "ByteFallback") {
            if (fused || any_bytes) refuse("the decoder \"ByteFallback\" comes behind Fuse or ByteLevel");
            fallback = true;
            for (auto& t : model.tokens) {
                unsigned value = 0;
                if (t.text.size() != 6 || !t.text.starts_with("<0x") || !t.text.ends_with('>')) continue;
                bool hex = true;
                for (const char h : t.text.substr(3, 2)) {
                    const auto digit = std::string_view("0123456789abcdef").find(static_cast<char>(h >= 'A' && h <= 'F' ? h + 32 : h));
                    hex = hex && digit != std::string_view::npos;
                    value = value * 16 + static_cast<unsigned>(digit & 15);
                }
                if (!hex) continue;
                t.is_byte = true;
                t.bytes.assign(1, static_cast<char>(static_cast<unsigned char>(value)));
            }
        } else if (type == "Fuse") {
            fused = true;
        } else if (type == "Strip") {
            const std::string content = string(c, "content", "Strip");
            const std::int64_t start = count(c, "start", "Strip"), stop = count(c, "stop", "Strip");
            if (content.empty() || utf8_at(content, 0).size != content.size()) refuse("the content of Strip is not one character");
            if (fused) {
                if (stop != 0 || rules.lead_count != 0) refuse("the decoder Strip changes more than the beginning of a text; that is not supported");
                rules.lead = content;
                rules.lead_count = start;
                return;
            }
            each(type, [&](std::string& text) {
                for (std::int64_t i = 0; i < start && text.starts_with(content); ++i) text.erase(0, content.size());
                for (std::int64_t i = 0; i < stop && text.ends_with(content); ++i) text.resize(text.size() - content.size());
            });
        } else if (type == "Replace") {
            NormalizerStep step;
            read_pattern(c, "Replace", step.pattern, step.regex);
            step.kind = step.regex ? NormalizerStep::Kind::replace_regex : NormalizerStep::Kind::replace_text;
            step.content = string(c, "content", "Replace");
            if (fallback && model.byte_fallback) refuse("the decoder Replace comes behind ByteFallback, where it is not supported");
            each(type, [&](std::string& text) { normalize(std::span(&step, 1), text, scratch); });
        } else if (type == "Metaspace") {
            const std::string marker = string(c, "replacement", "Metaspace");
            if (marker.empty()) refuse("the replacement of Metaspace is empty");
            const NormalizerStep step{.kind = NormalizerStep::Kind::replace_text, .pattern = marker, .content = " "};
            each(type, [&](std::string& text) { normalize(std::span(&step, 1), text, scratch); });
            // The space that the pre-tokenizer put before the text. (The reference drops every marker of the first token,
            // which loses spaces that were in the text.)
            const bool never = (!absent(c, "prepend_scheme") && c.at("prepend_scheme") == "never") || !flag(c, "add_prefix_space", true);
            rules.lead_count = never ? 0 : 1;
        } else {
            refuse("the decoder \"", type, "\" is not supported; ByteLevel, ByteFallback, Fuse, Strip, Replace and Metaspace are");
        }
    });
    if (bytes && !any_bytes) refuse("the pre_tokenizer turns text into bytes, but no ByteLevel decoder turns them back");
}

}  // namespace keel
