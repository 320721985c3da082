#include "data/char_bpe.h"

#include <algorithm>

#include "data/utf8.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::int32_t first_whole = -2 - 0x110000;  // symbols that are whole: first_whole - index

}  // namespace

CharBpe::CharBpe(Rules rules, const std::unordered_map<std::uint32_t, std::int32_t>& characters)
    : rules_(std::move(rules)), whole_(rules_.whole) {
    all_bytes_ = std::find(rules_.byte_tokens.begin(), rules_.byte_tokens.end(), -1) == rules_.byte_tokens.end();
    for (std::uint32_t code = 0; code < ascii_.size(); ++code) ascii_[code] = bare(code);
    for (const auto& [code, id] : characters) {
        if (code < ascii_.size()) ascii_[code] = id;
        else beyond_.emplace(code, id);
    }
}

void CharBpe::append_unknown(std::uint32_t code, std::vector<std::int32_t>& ids, bool& after_unknown,
                             const std::string& name) const {
    std::string bytes;
    append_utf8(code, bytes);
    bool all = true;
    for (const char c : bytes) all = all && rules_.byte_tokens[static_cast<unsigned char>(c)] >= 0;
    if (all) {
        for (const char c : bytes) ids.push_back(rules_.byte_tokens[static_cast<unsigned char>(c)]);
    } else if (!rules_.unknown) {
        fail(name, ": the vocabulary has no token for U+", std::hex, code,
             ", which the text contains, and none for what is unknown; this tokenizer cannot encode it");
    } else if (!(after_unknown && rules_.fuse_unknown)) {
        ids.push_back(*rules_.unknown);
    }
    after_unknown = !all;
}

void CharBpe::encode(std::string_view piece, const MergeTable& merges, BpeScratch& scratch, std::vector<std::int32_t>& ids,
                     const std::string& name) const {
    const std::size_t first = ids.size();
    bool after_unknown = false;
    for (std::size_t at = 0; at < piece.size();) {
        if (!whole_.empty()) {
            if (const Trie::Found found = whole_.longest(piece.substr(at)); found.size > 0) {
                ids.push_back(first_whole - found.value);
                at += found.size;
                continue;
            }
        }
        const Utf8Char c = utf8_at(piece, at);
        at += c.size;
        const std::int32_t id = symbol(c.code);
        if (id >= 0 || !rules_.bytes_before_merging) {
            ids.push_back(id);
            after_unknown = false;
        } else {
            append_unknown(c.code, ids, after_unknown, name);
        }
    }
    ids.resize(first + scratch.merge(merges, std::span(ids).subspan(first)));
    if (rules_.bytes_before_merging) return;
    bool known = true;
    for (std::size_t i = first; i < ids.size(); ++i) known = known && ids[i] >= 0;
    if (known) return;
    const std::vector<std::int32_t> symbols(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end());
    ids.resize(first);
    after_unknown = false;
    for (const std::int32_t s : symbols) {
        if (s < 0 && s > first_whole) {
            append_unknown(static_cast<std::uint32_t>(-2 - s), ids, after_unknown, name);
            continue;
        }
        ids.push_back(s >= 0 ? s : first_whole - s);
        after_unknown = false;
    }
}

MergeTable merges_of_tokens(const std::vector<RankedToken>& tokens, bool bytes, CutTable& cuts, const std::string& name) {
    constexpr std::size_t longest = 1024, most = std::size_t{1} << 26;
    std::unordered_map<std::string_view, std::int32_t> ids;
    for (const RankedToken& t : tokens)
        if (!ids.emplace(t.text, t.id).second) fail(name, ": the token \"", std::string(t.text), "\" occurs twice");
    const auto find = [&](std::string_view part) -> std::int32_t {
        if (const auto found = ids.find(part); found != ids.end()) return found->second;
        if (!bytes && utf8_at(part, 0).size == part.size()) return CharBpe::bare(utf8_at(part, 0).code);
        return -1;
    };
    std::vector<Merge> merges;
    std::vector<std::uint32_t> ranks;
    for (const RankedToken& t : tokens) {
        if (t.text.size() > longest) fail(name, ": a token of ", t.text.size(), " bytes; the longest read is ", longest);
        for (std::size_t at = 1; at < t.text.size(); ++at) {
            if (!bytes && (static_cast<unsigned char>(t.text[at]) & 0xc0) == 0x80) continue;
            const std::int32_t left = find(t.text.substr(0, at));
            if (left == -1) continue;
            const std::int32_t right = find(t.text.substr(at));
            if (right == -1) continue;
            if (merges.size() == most) fail(name, ": its tokens can be made of others in more than ", most, " ways");
            merges.push_back({left, right, t.id});
            cuts.add_merge(t.text.substr(0, at), t.text.substr(at));
            ranks.push_back(t.rank);
        }
    }
    return MergeTable(merges, ranks);
}

}  // namespace keel
