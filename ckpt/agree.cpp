#include "ckpt/agree.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <span>

#include "kernels/base/error.h"
#include "kernels/base/stream.h"

namespace keel {
namespace {

constexpr int ranks_told = 4;  // a full disk is told by a few; a thousand ranks would say the same

View<std::byte> bytes_of(std::string& text) {
    return {reinterpret_cast<std::byte*>(text.data()), {static_cast<std::int64_t>(text.size())}};
}

}  // namespace

std::vector<std::string> gather_texts(Group& group, const std::string& mine) {
    if (group.size() == 1) return {mine};
    const auto n = static_cast<std::size_t>(group.size());
    Stream stream(1, 0, 0);
    std::vector<std::int64_t> sizes(n);
    auto size = static_cast<std::int64_t>(mine.size());
    group.all_gather(stream, View<std::int64_t>(sizes.data(), {group.size()}), View<std::int64_t>(&size, {1}));
    const auto longest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
    std::string padded = mine, all(longest * n, '\0');
    padded.resize(longest);
    group.all_gather(stream, bytes_of(all), bytes_of(padded));
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < n; ++r) texts.push_back(all.substr(r * longest, static_cast<std::size_t>(sizes[r])));
    return texts;
}

std::string text_of_rank_0(Group& group, const std::string& text) {
    if (group.size() == 1) return text;
    Stream stream(1, 0, 0);
    auto size = static_cast<std::int64_t>(text.size());
    group.broadcast(stream, View<std::int64_t>(&size, {1}), 0);
    std::string out = text;
    out.resize(static_cast<std::size_t>(size));
    group.broadcast(stream, bytes_of(out), 0);
    return out;
}

void together(Group& group, const std::string& what, const std::function<void()>& work) {
    if (group.size() == 1) return work();
    std::optional<std::string> problem;
    try {
        work();
    } catch (const std::exception& e) {
        problem = e.what();
    }
    if (!group.any(problem.has_value())) return;
    const auto told = gather_texts(group, problem ? "!" + *problem : std::string());
    std::string text;
    int failed = 0;
    for (std::size_t r = 0; r < told.size(); ++r)
        if (!told[r].empty() && ++failed <= ranks_told)
            text += concat(failed > 1 ? "\n  " : "", "on rank ", group.members()[r], ": ", told[r].substr(1));
    if (failed > ranks_told) text += concat("\n  and on ", failed - ranks_told, " more ranks");
    fail(what + " failed ", text);
}

}  // namespace keel
