// Reads a tiktoken file: lines of a token in base64, a space and its rank, which is its id too. Of two neighbours whose
// joined bytes are tokens the pair of the lowest rank is joined first.
//
// The file holds neither a pattern nor special tokens. They come from `pat_str` and `added_tokens_decoder` of a
// tokenizer_config.json beside it, or from the list below, in which a file is known by what it contains, never by its name.
#include <algorithm>
#include <charconv>

#include "data/tokenizer_model.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

struct Special {
    std::string content;
    std::int32_t id;
};

// A published vocabulary: how many ranks it has, and some of them.
struct Known {
    std::size_t size;
    std::vector<Special> probes;
    std::string pattern;
    Normalization form;
    std::vector<Special> special;
};

std::vector<Special> numbered(std::vector<Special> out, const std::string& stem, int first, std::int32_t id, std::int32_t end) {
    for (int n = first; id < end; ++n, ++id) out.push_back({concat("<|", stem, "_", n, "|>"), id});
    return out;
}

std::vector<Known> known_files() {
    const std::string llama3 = pattern_text(Pattern::llama3);
    const std::string o200k =
        R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    return {
        {50256, {{"Hello", 15496}, {" Hello", 18435}}, pattern_text(Pattern::gpt2), Normalization::none, {{"<|endoftext|>", 50256}}},
        {100256, {{"Hello", 9906}, {" world", 1917}}, llama3, Normalization::none,
         {{"<|endoftext|>", 100257}, {"<|fim_prefix|>", 100258}, {"<|fim_middle|>", 100259}, {"<|fim_suffix|>", 100260},
          {"<|endofprompt|>", 100276}}},
        {128000, {{"Hello", 9906}, {" Vi\xe1\xbb\x87t", 101798}, {" soubor", 127539}}, llama3, Normalization::none,
         numbered({{"<|begin_of_text|>", 128000}, {"<|end_of_text|>", 128001}, {"<|reserved_special_token_0|>", 128002},
                   {"<|reserved_special_token_1|>", 128003}, {"<|finetune_right_pad_id|>", 128004},
                   {"<|reserved_special_token_2|>", 128005}, {"<|start_header_id|>", 128006}, {"<|end_header_id|>", 128007},
                   {"<|eom_id|>", 128008}, {"<|eot_id|>", 128009}, {"<|python_tag|>", 128010}},
                  "reserved_special_token", 3, 128011, 128256)},
        {151643, {{"Hello", 9707}, {" world", 1879}}, pattern_text(Pattern::qwen), Normalization::nfc,
         numbered({{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}}, "extra", 0, 151646, 151851)},
        {199998, {{"Hello", 13225}, {" world", 2375}}, o200k, Normalization::none,
         {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
    };
}

int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Strict: whole groups of four, padded at the end, unused bits zero.
bool read_base64(std::string_view text, std::string& bytes) {
    bytes.clear();
    if (text.empty() || text.size() % 4 != 0) return false;
    std::size_t padding = 0;
    while (padding < 2 && text[text.size() - 1 - padding] == '=') ++padding;
    unsigned held = 0;
    int bits = 0;
    for (const char c : text.substr(0, text.size() - padding)) {
        const int digit = base64_digit(c);
        if (digit < 0) return false;
        held = (held << 6 | static_cast<unsigned>(digit)) & 0xffffu;
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        bytes += static_cast<char>(static_cast<unsigned char>(held >> bits & 0xff));
    }
    return (held & ((1u << bits) - 1)) == 0;
}

bool read_line(std::string_view line, std::string& bytes, std::int32_t& rank) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || !read_base64(line.substr(0, space), bytes)) return false;
    const char* end = line.data() + line.size();
    const auto [at, error] = std::from_chars(line.data() + space + 1, end, rank);
    return error == std::errc() && at == end && rank >= 0;
}

// Calls body(line, its number) for each line that is not empty, until body returns false.
template <class Body> void for_each_line(std::string_view file, Body&& body) {
    std::int64_t number = 0;
    while (!file.empty()) {
        const std::size_t end = std::min(file.find('\n'), file.size());
        std::string_view line = file.substr(0, end);
        file.remove_prefix(std::min(end + 1, file.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (++number; !line.empty() && !body(line, number)) return;
    }
}

}  // namespace

bool looks_like_tiktoken(std::string_view file) {
    bool all = true;
    std::int64_t lines = 0;
    std::string bytes;
    std::int32_t rank;
    for_each_line(file, [&](std::string_view line, std::int64_t) { return ++lines, all = read_line(line, bytes, rank); });
    return all && lines > 0;
}

TokenizerModel parse_tiktoken(std::string_view file, const std::string& name) {
    TokenizerModel model;
    model.name = name;
    model.format = "a tiktoken file";
    model.ignore_merges = true;  // a piece that is a token is that token
    model.ranked = true;
    std::size_t count = 0;
    for_each_line(file, [&](std::string_view line, std::int64_t number) {
        TokenizerModel::Token token{.exists = true, .in_vocab = true, .spelt = true};
        std::int32_t rank;
        if (!read_line(line, token.bytes, rank)) fail(name, ", line ", number, ": not a token in base64, a space and a rank");
        const auto at = static_cast<std::size_t>(rank);
        if (at > file.size() + 65536) fail(name, ", line ", number, ": the rank ", rank, " is far beyond the tokens there are");
        if (at >= model.tokens.size()) model.tokens.resize(at + 1);
        if (model.tokens[at].exists) fail(name, ", line ", number, ": the rank ", rank, " occurs twice");
        model.tokens[at] = std::move(token);
        ++count;
        return true;
    });
    if (count == 0) fail(name, " holds no tokens");
    for (std::size_t rank = 0; rank < model.tokens.size(); ++rank)
        if (!model.tokens[rank].exists)
            fail(name, ": no token has the rank ", rank, ", but later ones are there; the file is damaged");
    std::vector<RankedToken> ranked;
    std::array<bool, 256> byte{};
    for (std::size_t id = 0; id < model.tokens.size(); ++id) {
        const auto& t = model.tokens[id];
        if (!t.exists) continue;
        ranked.push_back({t.bytes, static_cast<std::int32_t>(id), static_cast<std::uint32_t>(id)});
        if (t.bytes.size() == 1) byte[static_cast<unsigned char>(t.bytes[0])] = true;
    }
    for (std::size_t b = 0; b < 256; ++b)
        if (!byte[b]) fail(name, ": there is no token for the byte ", b);
    model.merge_table = merges_of_tokens(ranked, true, model.cuts, name);
    model.source_name = "tokenizer.model";
    model.source = file;
    for (Known& known : known_files()) {
        const auto has = [&](const Special& probe) {
            const auto id = static_cast<std::size_t>(probe.id);
            return id < model.tokens.size() && model.tokens[id].bytes == probe.content;
        };
        if (known.size != count || !std::all_of(known.probes.begin(), known.probes.end(), has)) continue;
        set_tiktoken_pattern(model, known.pattern);
        if (known.form != Normalization::none)
            model.normalizer = {{.kind = NormalizerStep::Kind::unicode, .form = known.form}};
        for (const Special& s : known.special) add_special_token(model, s.content, s.id);
        return model;
    }
    model.cutting = TokenizerModel::Cutting::steps;  // with none: the folder's reader must find the pattern
    return model;
}

void set_tiktoken_pattern(TokenizerModel& model, const std::string& pattern) {
    if (const auto scanner = pattern_of(pattern)) {
        model.cutting = TokenizerModel::Cutting::scanner;
        model.pretokenizer.pattern = *scanner;
        model.steps.clear();
        return;
    }
    model.cutting = TokenizerModel::Cutting::steps;
    // What lies between two matches is dropped there, and would be lost in silence: it stays a piece here.
    model.steps = {{.kind = SplitStep::Kind::regex, .text = pattern,
                    .regex = std::make_shared<const Regex>(pattern, RegexLanguage::rust, model.name)}};
}

}  // namespace keel
