#include "kernels/cudasim/sweep.h"

#include <algorithm>
#include <exception>

namespace sim {

std::vector<Config> schedules_of(const SweepOptions& options) {
    std::vector<Config> all;
    const auto add = [&](Order order, Async async, Poison poison) {
        Config config;
        config.order = order;
        config.async = async;
        config.poison = poison;
        config.streams = options.streams;
        config.seed = options.seed + all.size();
        config.shuffle_blocks = static_cast<int>(order) % 2 == 1;
        all.push_back(config);
    };
    if (options.reach == SweepOptions::Reach::two) {
        add(Order::random_lanes, Async::late, Poison::nan);
        add(Order::warps_backward, Async::early, Poison::finite);
        return all;
    }
    for (int order = 0; order < orders; ++order)
        for (const Async async : {Async::late, Async::early})
            for (const Poison poison : {Poison::nan, Poison::finite}) add(static_cast<Order>(order), async, poison);
    return all;
}

bool SweepResult::has(Kind kind) const {
    return std::any_of(findings.begin(), findings.end(), [=](const Finding& f) { return f.kind == kind; });
}

std::string SweepResult::text() const {
    std::string text;
    for (const Finding& f : findings) text.append(name(f.kind)).append(": ").append(f.text).append("\n");
    return text;
}

bool SweepResult::says(Kind kind, std::initializer_list<std::string_view> words) const {
    return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
        return f.kind == kind && std::all_of(words.begin(), words.end(), [&](std::string_view word) {
                   return f.text.find(word) != std::string::npos;
               });
    });
}

SweepResult sweep(const SweepOptions& options, const std::function<void(Outputs&)>& work) {
    SweepResult result;
    const Config before = config();
    std::vector<Outputs> seen;
    std::string first_schedule;
    take_findings();
    for (const Config& schedule : schedules_of(options)) {
        Config c = schedule;
        c.early_exit = before.early_exit;
        c.print = before.print;
        c.patience_ms = before.patience_ms;
        configure(c);
        Outputs outputs;
        std::string thrown;
        try {
            work(outputs);
        } catch (const std::exception& e) {
            thrown = e.what();
        }
        std::vector<Finding> findings = take_findings();
        // After a finding an error is its consequence; on its own it must be told.
        if (!thrown.empty() && findings.empty()) findings.push_back({Kind::bad_call, "the work threw: " + thrown});
        for (Finding& f : findings) {
            const bool known = std::any_of(result.findings.begin(), result.findings.end(), [&](const Finding& k) {
                return k.kind == f.kind && k.text.starts_with(f.text);
            });
            if (!known) result.findings.push_back({f.kind, f.text + " [" + schedule.text() + "]"});
        }
        ++result.schedules;
        if (!thrown.empty()) continue;  // there is nothing to compare
        const auto same = [&](const Outputs& other) {
            const auto& a = outputs.all();
            const auto& b = other.all();
            return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                                      [](const auto& x, const auto& y) { return x.bytes == y.bytes; });
        };
        if (std::any_of(seen.begin(), seen.end(), same)) continue;
        if (seen.empty()) first_schedule = schedule.text();
        if (!seen.empty() && options.same_bits) {
            const auto& a = seen.front().all();
            const auto& b = outputs.all();
            for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
                const auto& x = a[i].bytes;
                const auto& y = b[i].bytes;
                const auto at = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
                if (at.first == x.end() && at.second == y.end()) continue;
                result.findings.push_back({Kind::nondeterminism, a[i].name + " differs from byte " +
                                                                     std::to_string(at.first - x.begin()) + " of " +
                                                                     std::to_string(x.size()) + " on [" +
                                                                     first_schedule + "] [" + schedule.text() + "]"});
                break;
            }
        }
        seen.push_back(std::move(outputs));
    }
    result.distinct = static_cast<int>(seen.size());
    configure(before);
    return result;
}

}  // namespace sim
