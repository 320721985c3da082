#include "data/unigram.h"

#include <algorithm>
#include <limits>

#include "data/utf8.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr double unknown_penalty = 10;  // below the least likely token

}  // namespace

Unigram::Unigram(Rules rules, const std::vector<Token>& tokens) : rules_(std::move(rules)) {
    // SentencePiece looks for the greatest score from the least positive float on, and log-probabilities are negative: a
    // user-defined symbol costs 0.1 there, whatever its length.
    double least = std::numeric_limits<double>::infinity(), most = static_cast<double>(std::numeric_limits<float>::min());
    std::vector<std::pair<std::string, std::int32_t>> texts;
    for (const Token& t : tokens) {
        if (!t.findable) continue;
        if (!t.user_defined) least = std::min(least, t.score), most = std::max(most, t.score);
        texts.emplace_back(t.text, static_cast<std::int32_t>(tokens_.size()));
        tokens_.push_back({t.id, t.score, t.user_defined});
    }
    trie_ = Trie(std::move(texts));
    max_score_ = most;
    unknown_score_ = rules_.float_sums ? static_cast<double>(static_cast<float>(least) - static_cast<float>(unknown_penalty))
                                       : least - unknown_penalty;
}

void Unigram::encode(std::string_view piece, Scratch& s, std::vector<std::int32_t>& ids, const std::string& name) const {
    if (piece.size() >= std::numeric_limits<std::uint32_t>::max()) fail("a piece of ", piece.size(), " bytes is too long to encode");
    s.nodes.assign(piece.size() + 1, Scratch::Node{});
    const auto rounded = [&](double sum) { return rules_.float_sums ? static_cast<double>(static_cast<float>(sum)) : sum; };
    for (std::size_t at = 0; at < piece.size();) {
        const double here = s.nodes[at].score;
        const std::size_t one = utf8_at(piece, at).size;
        bool single = false;
        const auto offer = [&](std::size_t size, double sum, std::int32_t id) {
            Scratch::Node& node = s.nodes[at + size];
            if (node.id != Scratch::none && !(sum > node.score)) return;
            node = {rounded(sum), static_cast<std::uint32_t>(at), id};
        };
        trie_.prefixes(piece.substr(at), [&](std::size_t size, std::int32_t index) {
            const Found& t = tokens_[static_cast<std::size_t>(index)];
            const double score = t.user_defined ? static_cast<double>(size) * max_score_ - 0.1 : t.score;
            offer(size, rounded(score + here), t.id);
            single = single || size == one;
        });
        if (!single) offer(one, rounded(unknown_score_ + here), Scratch::unknown);
        at += one;
    }
    // Backwards along the best path. A token may end inside of a character only if the vocabulary says so; none of those
    // begins a path, so every node on it was reached.
    s.ids.clear();
    for (std::size_t end = piece.size(); end > 0;) {
        const Scratch::Node& node = s.nodes[end];
        s.ids.push_back(static_cast<std::int32_t>(end));
        end = node.begin;
    }
    bool after_unknown = false;
    std::size_t begin = 0;
    for (auto i = s.ids.rbegin(); i != s.ids.rend(); ++i) {
        const auto end = static_cast<std::size_t>(*i);
        const std::int32_t id = s.nodes[end].id;
        const std::string_view part = piece.substr(begin, end - begin);
        begin = end;
        if (id != Scratch::unknown) {
            ids.push_back(id);
            after_unknown = false;
            continue;
        }
        if (std::all_of(part.begin(), part.end(), [&](char c) { return rules_.byte_tokens[static_cast<unsigned char>(c)] >= 0; })) {
            for (const char c : part) ids.push_back(rules_.byte_tokens[static_cast<unsigned char>(c)]);
            after_unknown = false;
        } else if (!rules_.unknown) {
            fail(name, ": \"", std::string(part), "\" has no token, and there is none for what is unknown");
        } else {
            if (!(after_unknown && rules_.fuse_unknown)) ids.push_back(*rules_.unknown);
            after_unknown = true;
        }
    }
    if (s.nodes.capacity() > std::size_t{1} << 22) s.nodes = {};
}

}  // namespace keel
