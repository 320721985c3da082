#include "data/normalizer.h"

#include "data/utf8.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

void replace_text(const std::string& pattern, const std::string& content, std::string& text) {
    std::size_t hit = text.find(pattern);
    if (hit == std::string::npos) return;
    std::string out;
    out.reserve(text.size() + text.size() / 4);
    std::size_t at = 0;
    for (; hit != std::string::npos; hit = text.find(pattern, at)) {
        out.append(text, at, hit - at).append(content);
        at = hit + pattern.size();
    }
    text = out.append(text, at);
}

void replace_regex(const Regex& regex, const std::string& content, std::string& text, RegexScratch& scratch) {
    std::string out;
    for_each_match(regex, text, scratch, [&](std::size_t begin, std::size_t end, bool is_match) {
        if (is_match) out += content;
        else out.append(text, begin, end - begin);
    });
    text = std::move(out);
}

void strip(bool left, bool right, std::string& text) {
    std::size_t begin = 0, end = text.size();
    while (left && begin < end) {
        const Utf8Char c = utf8_at(text, begin);
        if (char_class(c.code) != CharClass::space) break;
        begin += c.size;
    }
    while (right && begin < end) {
        std::size_t last = end - 1;
        while ((static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
        if (char_class(utf8_at(text, last).code) != CharClass::space) break;
        end = last;
    }
    text = text.substr(begin, end - begin);
}

}  // namespace

void normalize(std::span<const NormalizerStep> steps, std::string& text, RegexScratch& scratch) {
    for (const NormalizerStep& step : steps) switch (step.kind) {
        case NormalizerStep::Kind::unicode: text = normalize(text, step.form); break;
        case NormalizerStep::Kind::replace_text: replace_text(step.pattern, step.content, text); break;
        case NormalizerStep::Kind::replace_regex: replace_regex(*step.regex, step.content, text, scratch); break;
        case NormalizerStep::Kind::prepend:
            if (!text.empty()) text.insert(0, step.content);
            break;
        case NormalizerStep::Kind::strip: strip(step.left, step.right, text); break;
        case NormalizerStep::Kind::sentencepiece: text = step.sentencepiece->normalize(text); break;
    }
}

std::string canonical(std::span<const NormalizerStep> steps) {
    std::string out;
    for (const NormalizerStep& s : steps) {
        const std::string& pattern = s.regex ? s.regex->pattern() : s.pattern;
        out += concat("normalize ", static_cast<int>(s.kind), ' ', static_cast<int>(s.form), ' ', s.left, s.right, ' ',
                      pattern.size(), ':', pattern, ' ', s.content.size(), ':', s.content, ' ');
        if (s.sentencepiece) out += s.sentencepiece->canonical();
    }
    return out;
}

}  // namespace keel
