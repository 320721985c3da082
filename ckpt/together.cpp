#include "ckpt/together.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <span>

#include "comm/agree.h"
#include "kernels/base/error.h"
#include "kernels/base/stream.h"

namespace keel {
namespace {

constexpr std::size_t reasons_told = 4,
                      ranks_told = 8;  // a full disk is told by a few; a thousand ranks would say the same

View<std::byte> bytes_of(std::string& text) {
    return {reinterpret_cast<std::byte*>(text.data()), {static_cast<std::int64_t>(text.size())}};
}

// "on every rank", "on ranks 1, 2"
std::string ranks_text(const Group& group, const std::vector<std::string>& told, const std::string& reason) {
    std::string text;
    std::size_t count = 0;
    for (std::size_t r = 0; r < told.size(); ++r)
        if (told[r] == reason && count++ < ranks_told) text += concat(text.empty() ? "" : ", ", group.members()[r]);
    if (count == told.size()) return "on every rank";
    if (count > ranks_told) text += concat(" and ", count - ranks_told, " more");
    return (count == 1 ? "on rank " : "on ranks ") + text;
}

}  // namespace

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
    const auto told = gather_strings(group, problem ? "!" + *problem : std::string());
    std::vector<std::string> reasons;  // each once: of a file that is damaged every rank says the same
    for (const std::string& reason : told)
        if (!reason.empty() && std::find(reasons.begin(), reasons.end(), reason) == reasons.end())
            reasons.push_back(reason);
    std::string text;
    for (std::size_t i = 0; i < reasons.size() && i < reasons_told; ++i)
        text += concat(i > 0 ? "\n  " : "", ranks_text(group, told, reasons[i]), ": ", reasons[i].substr(1));
    if (reasons.size() > reasons_told) text += concat("\n  and on ", reasons.size() - reasons_told, " more");
    fail(what + " failed ", text);
}

}  // namespace keel
