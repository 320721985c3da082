#include "data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::size_t longest_pattern = 1 << 16;

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of(int error) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof text);
    return reinterpret_cast<const char*>(text);
}

}  // namespace

struct RegexScratch::State {
    pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
    pcre2_match_context* context = pcre2_match_context_create(nullptr);
    pcre2_jit_stack* stack = pcre2_jit_stack_create(64 << 10, 64 << 20, nullptr);  // pages appear when they are used

    State() {
        if (match == nullptr || context == nullptr || stack == nullptr) fail("no memory for regular expressions");
        pcre2_jit_stack_assign(context, nullptr, stack);
    }
    ~State() {
        pcre2_jit_stack_free(stack);
        pcre2_match_context_free(context);
        pcre2_match_data_free(match);
    }
    State(const State&) = delete;
};

RegexScratch::RegexScratch() = default;  // made when it is first used: most tokenizers have no such pattern
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;

Regex::Regex(std::string_view pattern, RegexLanguage language, const std::string& where) : pattern_(pattern), where_(where) {
    if (pattern.size() > longest_pattern) fail(where, ": a pattern of ", pattern.size(), " bytes; the longest read is ", longest_pattern);
    const std::string ours = pcre2_pattern(pattern, language, where);
    const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(pcre2_compile_context_create(nullptr),
                                                                                          pcre2_compile_context_free);
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    const std::uint32_t lines = language == RegexLanguage::oniguruma ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
    int error = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(units(ours), ours.size(), PCRE2_UTF | PCRE2_UCP | lines, &error, &at, context.get()),
                [](void* code) { pcre2_code_free(static_cast<pcre2_code*>(code)); });
    if (code_ == nullptr)
        fail(where, ": the pattern ", pattern_, " is not understood: ", message_of(error), " (at byte ", at, " of ", ours, ")");
    pcre2_jit_compile(static_cast<pcre2_code*>(code_.get()), PCRE2_JIT_COMPLETE);  // without it matching is slower, and the same
}

bool Regex::find(std::string_view text, std::size_t from, RegexScratch& scratch, Match& match) const {
    if (!scratch.state_) scratch.state_ = std::make_unique<RegexScratch::State>();
    RegexScratch::State& s = *scratch.state_;
    // A run of white space is walked back once by some alternatives, so one match may cost a few steps per byte that is
    // left. Nesting repetitions cost exponentially many: those end here.
    const std::uint64_t limit = 1'000'000 + 64 * static_cast<std::uint64_t>(text.size() - from);
    pcre2_set_match_limit(s.context, static_cast<std::uint32_t>(std::min<std::uint64_t>(limit, std::numeric_limits<std::uint32_t>::max())));
    const int found = pcre2_match(static_cast<const pcre2_code*>(code_.get()), units(text), text.size(), from,
                                  PCRE2_NO_UTF_CHECK, s.match, s.context);
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0)
        fail(where_, ": the pattern ", pattern_, " gave up at byte ", from, " of a text of ", text.size(), " bytes: ",
             message_of(found), "; the text is not cut, for it could be cut wrongly");
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(s.match);
    if (span[0] < from || span[1] < span[0]) fail(where_, ": the pattern ", pattern_, " matches backwards");
    match = {span[0], span[1]};
    return true;
}

bool pcre2_compiles(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code* code = pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
    pcre2_code_free(code);
    return code != nullptr;
}

std::string regex_unicode_version() {
    char text[64];
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text);
    return text;
}

}  // namespace keel
