#include "engine/parallel/layers.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::size_t longest_layout = 1 << 16;

// Blocks per virtual stage; an empty optional where a rule does not come out even.
using Counts = std::optional<std::vector<int>>;

Counts even(const LayerSplit& s, bool embedding, bool head) {
    const int stages = s.stages * s.chunks, counted = s.layers + (embedding ? 1 : 0) + (head ? 1 : 0);
    if (counted % stages != 0) return std::nullopt;
    std::vector<int> counts(static_cast<std::size_t>(stages), counted / stages);
    counts.front() -= embedding ? 1 : 0;
    counts.back() -= head ? 1 : 0;
    return counts;
}

// `first` and `last` blocks on the first and the last rank, 0 meaning as many as the others; chunks share them equally.
Counts with_ends(const LayerSplit& s, int first, int last) {
    const int others = s.stages - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0), rest = s.layers - first - last;
    if (rest < 0 || (others == 0 ? rest != 0 : rest % (others * s.chunks) != 0)) return std::nullopt;
    if (first % s.chunks != 0 || last % s.chunks != 0) return std::nullopt;
    std::vector<int> counts;
    for (int i = 0; i < s.stages * s.chunks; ++i) {
        const int rank = i % s.stages;
        const int of_rank = rank == 0 && first > 0 ? first : rank == s.stages - 1 && last > 0 ? last : rest / others;
        counts.push_back(of_rank / s.chunks);
    }
    return counts;
}

std::string shown(const std::vector<int>& counts) {
    std::string out;
    for (const int n : counts) out += concat(out.empty() ? "" : " ", n);
    return out;
}

std::string where(const LayerSplit& s) {
    std::string out = concat("--parallel.pp ", s.stages);
    if (s.chunks > 1) out += concat(" times --parallel.chunks ", s.chunks);
    return out;
}

// A layout that always works: what is left over goes to the stages in the middle, which hold neither embedding nor
// head.
std::string balanced_layout(const LayerSplit& s) {
    const int stages = s.stages * s.chunks, rest = s.layers % stages, begin = (stages - rest + 1) / 2;
    std::string out = "E";
    for (int i = 0; i < stages; ++i) {
        const int n = s.layers / stages + (i >= begin && i < begin + rest ? 1 : 0);
        if (n > 0) out += n == 1 ? "t" : concat("t*", n);
        if (i + 1 < stages) out += '|';
    }
    return out + "L";
}

// What would make the split come out even, each tried before it is proposed.
std::string proposals(const LayerSplit& s) {
    std::string out;
    const auto propose = [&](const std::string& flags, const Counts& counts) {
        if (counts) out += concat(out.empty() ? "" : "; or ", flags, " (", shown(*counts), ")");
    };
    propose("--parallel.count_embedding true --parallel.count_head true", even(s, true, true));
    propose("--parallel.count_embedding true", even(s, true, false));
    propose("--parallel.count_head true", even(s, false, true));
    if (const int fair = s.layers / s.stages; s.stages > 1) {
        std::optional<std::vector<int>> best;
        int best_first = 0, best_last = 0;
        for (int distance = 0; distance <= fair && !best; ++distance)  // nearest to equal first
            for (int first = fair - distance; first <= fair + distance && !best; ++first)
                for (int last = std::max(first - 1, 1); last <= first && !best; ++last)
                    if (first > 0 && (best = with_ends(s, first, last))) best_first = first, best_last = last;
        propose(concat("--parallel.first_layers ", best_first, " --parallel.last_layers ", best_last), best);
    }
    return out + concat(out.empty() ? "" : "; or ", "--parallel.layers \"", balanced_layout(s), "\"");
}

std::vector<LayerRange> ranges(const std::vector<int>& counts) {
    std::vector<LayerRange> out;
    int begin = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        out.push_back({begin, begin + counts[i], i == 0, i + 1 == counts.size()});
        begin += counts[i];
    }
    return out;
}

// A layout is read by recursive descent: items until ')' or the end, each a letter, a bar or a group, times a number.
struct LayoutReader {
    const std::string& text;
    std::size_t at = 0;

    [[noreturn]] void refuse(const std::string& why) const {
        fail_usage("--parallel.layers \"", text, "\", character ", at + 1, ": ", why);
    }
    bool done() {
        while (at < text.size() && (text[at] == ',' || std::isspace(static_cast<unsigned char>(text[at])))) ++at;
        return at == text.size();
    }
    std::string items(int depth) {
        std::string out;
        while (!done() && text[at] != ')') out += repeated(item(depth), out.size());
        if (depth > 0 && done()) refuse("a ( is never closed");
        if (depth == 0 && !done()) refuse("this ) closes nothing");
        return out;
    }
    std::string item(int depth) {
        if (text[at] == '(') {
            if (depth > 8) refuse("groups are nested more than 8 deep");
            ++at;
            std::string inner = items(depth + 1);
            ++at;
            return inner;
        }
        if (std::string("EtmL|").find(text[at]) == std::string::npos)
            refuse(concat("'", text[at], "' is not E (embedding), t (block), L (head), |, ( or )"));
        return std::string(1, text[at++]);
    }
    std::string repeated(const std::string& once, std::size_t before) {
        if (done() || text[at] != '*') return once;
        ++at;
        if (done() || !std::isdigit(static_cast<unsigned char>(text[at]))) refuse("a number must follow *");
        std::size_t times = 0;
        while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])))
            times = std::min(times * 10 + static_cast<std::size_t>(text[at++] - '0'), longest_layout + 1);
        if (times == 0) refuse("repeats 0 times; leave the item out");
        if (once.size() * times + before > longest_layout) refuse(concat("is longer than ", longest_layout, " items"));
        std::string out;
        for (std::size_t i = 0; i < times; ++i) out += once;
        return out;
    }
};

std::vector<int> layout_counts(const LayerSplit& s) {
    const std::vector<std::string> words = expand_layout(s.layout);
    const auto refuse = [&](const auto&... why) {
        fail_usage(concat("--parallel.layers \"", s.layout, "\": "), why...);
    };
    if (words.size() != static_cast<std::size_t>(s.stages * s.chunks))
        refuse("has ", words.size(), " stages, but ", where(s), " makes ", s.stages * s.chunks);
    std::vector<int> counts;
    int total = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
        std::string rest = words[i];
        if (rest.find('m') != std::string::npos)
            refuse("stage ", i, " (", rest, ") asks for multi-token prediction, which keel does not have");
        const bool first = i == 0, last = i + 1 == words.size();
        if (first != (rest.find('E') == 0))
            refuse("stage ", i, " is \"", rest, "\"; the first stage, and no other, begins with E");
        if (last != (!rest.empty() && rest.find('L') == rest.size() - 1))
            refuse("stage ", i, " is \"", rest, "\"; the last stage, and no other, ends with L");
        const auto blocks = std::count(rest.begin(), rest.end(), 't');
        if (rest.size() != static_cast<std::size_t>(blocks) + (first ? 1 : 0) + (last ? 1 : 0))
            refuse("stage ", i, " is \"", rest,
                   "\"; there is one E, at the very beginning, and one L, at the very end");
        counts.push_back(static_cast<int>(blocks));
        total += counts.back();
    }
    if (total != s.layers) refuse("has ", total, " blocks (t), but --model.layers is ", s.layers);
    return counts;
}

void check_options(const LayerSplit& s) {
    if (s.layers < 1) fail_usage("--model.layers is ", s.layers, "; it must be at least 1");
    if (s.stages < 1 || s.chunks < 1) fail_usage(where(s), ": both must be at least 1");
    if (s.first < 0 || s.last < 0)
        fail_usage("--parallel.first_layers ", s.first, " and --parallel.last_layers ", s.last,
                   ": give numbers of layers, or 0 to choose");
    const bool ends = s.first > 0 || s.last > 0, account = s.count_embedding || s.count_head;
    if (!s.layout.empty() && (ends || account))
        fail_usage(
            "--parallel.layers says where every layer lies; leave --parallel.first_layers, --parallel.last_layers, ",
            "--parallel.count_embedding and --parallel.count_head out");
    if (ends && account)
        fail_usage("--parallel.count_embedding and --parallel.count_head are another way to say what ",
                   "--parallel.first_layers and --parallel.last_layers say; give one or the other");
    if (ends && s.stages == 1)
        fail_usage("--parallel.first_layers and --parallel.last_layers need --parallel.pp of at least 2");
}

}  // namespace

std::vector<std::string> expand_layout(const std::string& layout) {
    LayoutReader reader{layout};
    const std::string flat = reader.items(0);
    std::vector<std::string> words(1);
    for (const char c : flat) {
        if (c == '|') words.emplace_back();
        else words.back() += c;
    }
    return words;
}

std::vector<LayerRange> layer_split(const LayerSplit& s) {
    check_options(s);
    if (!s.layout.empty()) return ranges(layout_counts(s));
    const bool ends = s.first > 0 || s.last > 0;
    const Counts counts = ends ? with_ends(s, s.first, s.last) : even(s, s.count_embedding, s.count_head);
    if (counts) return ranges(*counts);
    std::string asked = concat(s.layers, " layers do not divide over ", where(s), " stages");
    if (s.first > 0) asked += concat(" with --parallel.first_layers ", s.first);
    if (s.last > 0) asked += concat(s.first > 0 ? " and" : " with", " --parallel.last_layers ", s.last);
    if (s.count_embedding) asked += " with --parallel.count_embedding";
    if (s.count_head) asked += concat(s.count_embedding ? " and" : " with", " --parallel.count_head");
    fail_usage(asked + ". Give " + proposals(s));
}

}  // namespace keel
