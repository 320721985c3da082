#include "data/split.h"

#include <utf8proc.h>

#include "data/bpe.h"
#include "data/utf8.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

// Turns matches and gaps, as they come, into pieces.
template <class Emit> class Behave {
public:
    Behave(SplitBehavior how, bool invert, Emit emit) : how_(how), invert_(invert), emit_(std::move(emit)) {}

    void add(std::size_t begin, std::size_t end, bool match) {
        match = match != invert_;
        switch (how_) {
            case SplitBehavior::isolated: return put(begin, end);
            case SplitBehavior::removed:
                if (!match) put(begin, end);
                return;
            case SplitBehavior::contiguous:
                if (held_ && match == match_) end_ = end;
                else hold(begin, end);
                break;
            case SplitBehavior::merged_with_previous:
                if (held_ && match && !match_) end_ = end;
                else hold(begin, end);
                break;
            case SplitBehavior::merged_with_next:
                if (held_ && match_ && !match) end_ = end;
                else hold(begin, end);
                break;
        }
        match_ = match;
    }
    void finish() {
        if (held_) put(begin_, end_);
        held_ = false;
    }

private:
    void put(std::size_t begin, std::size_t end) {
        if (begin < end) emit_(begin, end);
    }
    void hold(std::size_t begin, std::size_t end) {
        finish();
        begin_ = begin, end_ = end, held_ = true;
    }

    SplitBehavior how_;
    bool invert_, held_ = false, match_ = false;
    std::size_t begin_ = 0, end_ = 0;
    Emit emit_;
};

// Every character for which is(code) holds is a match of its own; the others are in runs.
template <class Is, class To> void characters(std::string_view text, Is&& is, To& to) {
    std::size_t gap = 0, at = 0;
    while (at < text.size()) {
        const Utf8Char c = utf8_at(text, at);
        if (is(c.code)) {
            if (at > gap) to.add(gap, at, false);
            to.add(at, at + c.size, true);
            gap = at + c.size;
        }
        at += c.size;
    }
    if (at > gap) to.add(gap, at, false);
}

bool is_punctuation(std::uint32_t code) {
    if (code < 128) return (code >= 33 && code <= 47) || (code >= 58 && code <= 64) || (code >= 91 && code <= 96) || (code >= 123 && code <= 126);
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

template <class To> void words(std::string_view text, To& to) {
    const auto kind = [](std::uint32_t code) { return char_class(code) == CharClass::space ? 0 : is_word_char(code) ? 1 : 2; };
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t begin = at;
        const int first = kind(utf8_at(text, at).code);
        while (at < text.size()) {
            const Utf8Char c = utf8_at(text, at);
            if (kind(c.code) != first) break;
            at += c.size;
        }
        to.add(begin, at, first == 0);
    }
}

template <class To> void literal(std::string_view pattern, std::string_view text, To& to) {
    std::size_t at = 0;
    for (std::size_t hit = text.find(pattern); hit != std::string_view::npos; hit = text.find(pattern, at)) {
        if (hit > at) to.add(at, hit, false);
        to.add(hit, hit + pattern.size(), true);
        at = hit + pattern.size();
    }
    if (at < text.size()) to.add(at, text.size(), false);
}

}  // namespace

void Splitter::run(std::span<const SplitStep> steps, std::string_view text, bool first, const Body& body) {
    if (rewritten_.size() < steps.size()) rewritten_.resize(steps.size());
    if (!text.empty()) apply(steps, text, first, 0, body);
}

void Splitter::apply(std::span<const SplitStep> steps, std::string_view text, bool first, std::size_t depth, const Body& body) {
    if (depth == steps.size()) return body(text);
    const SplitStep& step = steps[depth];
    std::string& changed = rewritten_[depth];
    const auto whole = [&](std::string_view t) { apply(steps, t, first, depth + 1, body); };
    const auto emit = [&](std::size_t begin, std::size_t end) {
        apply(steps, text.substr(begin, end - begin), first && begin == 0, depth + 1, body);
    };
    Behave to(step.behavior, step.invert, emit);
    switch (step.kind) {
        case SplitStep::Kind::scanner:
            for (std::size_t at = 0; at < text.size();) {
                const std::size_t end = piece_end(step.pattern, text, at);
                to.add(at, end, true);
                at = end;
            }
            break;
        case SplitStep::Kind::regex:
            for_each_match(*step.regex, text, regex_, [&](std::size_t b, std::size_t e, bool match) { to.add(b, e, match); });
            break;
        case SplitStep::Kind::text: literal(step.text, text, to); break;
        case SplitStep::Kind::digits:
            characters(text, [](std::uint32_t code) { return char_class(code) == CharClass::number; }, to);
            break;
        case SplitStep::Kind::punctuation: characters(text, is_punctuation, to); break;
        case SplitStep::Kind::whitespace: words(text, to); break;
        case SplitStep::Kind::prefix_space:
            if (text.starts_with(' ')) return whole(text);
            changed.assign(1, ' ').append(text);
            return whole(changed);
        case SplitStep::Kind::spell:
            changed = spell_bytes(text);
            return whole(changed);
        case SplitStep::Kind::metaspace: {
            changed.clear();
            const bool marked = text.starts_with(' ') || text.starts_with(step.text);
            if (!marked && (step.prepend == SplitStep::Prepend::always || (step.prepend == SplitStep::Prepend::first && first)))
                changed += step.text;
            for (std::size_t at = 0; at < text.size();) {
                const std::size_t space = std::min(text.find(' ', at), text.size());
                changed.append(text, at, space - at);
                if (space < text.size()) changed += step.text;
                at = space + 1;
            }
            text = changed;
            if (!step.cut) return whole(text);
            literal(step.text, text, to);
            break;
        }
    }
    to.finish();
}

std::string canonical(std::span<const SplitStep> steps) {
    std::string out;
    for (const SplitStep& s : steps) {
        const std::string pattern = s.kind == SplitStep::Kind::scanner ? pattern_text(s.pattern) : s.regex ? s.regex->pattern() : s.text;
        out += concat("split ", static_cast<int>(s.kind), ' ', static_cast<int>(s.behavior), s.invert, static_cast<int>(s.prepend),
                      s.cut, ' ', pattern.size(), ':', pattern, ' ');
    }
    return out;
}

}  // namespace keel
