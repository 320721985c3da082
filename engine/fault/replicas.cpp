#include "engine/fault/replicas.h"

#include <algorithm>
#include <numeric>

#include "comm/agree.h"

namespace keel {

Replicas::Replicas(const Config& config, Stream& host_stream, const Ranks& ranks, Model& model, const std::string& host, Findings& findings)
    : stream_(host_stream), ranks_(ranks), model_(model), host_(host), findings_(findings), interval_(config.fault.replica_interval) {
    const std::vector<Param>& specs = model.params().specs;
    std::vector<int> all(specs.size()), whole, tied;
    std::iota(all.begin(), all.end(), 0);
    for (const int i : all) {
        const Param& p = specs[static_cast<std::size_t>(i)];
        if (p.held != Held::cut) whole.push_back(i);
        if (p.name == "embed") tied.push_back(i);
    }
    add(ranks_.replicas, all);
    add(ranks_.tp, whole);
    add(ranks_.embedding, tied);
}

void Replicas::add(Group& group, std::vector<int> params) {
    if (group.size() == 1) return;
    const std::size_t n = params.size();
    const std::size_t all = n * static_cast<std::size_t>(group.size());
    among_.push_back({group, std::move(params), std::vector<std::int64_t>(n), std::vector<std::int64_t>(all)});
}

void Replicas::compare(std::int64_t step, const StepPlan& plan) {
    if (interval_ == 0 || step % interval_ != 0 || ranks_.world.size() == 1) return;
    model_.gradients().need_all();
    bool differs = false;
    const HashSlots& slots = model_.hash_slots();
    const std::int64_t element = size_bytes(model_.dtype());
    for (const Among& a : among_)
        for (const int p : a.params) {
            const Param& param = model_.params().specs[static_cast<std::size_t>(p)];
            model_.hash(slots.parameter(p), {model_.param_data() + param.offset * element, {param.size() * element}});
        }
    const std::span<const std::uint64_t> hashes = model_.hashes();
    for (Among& a : among_) {
        for (std::size_t i = 0; i < a.params.size(); ++i)
            a.mine[i] = static_cast<std::int64_t>(hashes[static_cast<std::size_t>(slots.parameter(a.params[i]))]);
        const View<std::int64_t> all(a.all.data(), {static_cast<std::int64_t>(a.all.size())});
        a.group.all_gather(stream_, all, View<const std::int64_t>(a.mine.data(), {static_cast<std::int64_t>(a.mine.size())}));
        for (std::size_t i = 0; i < a.all.size(); ++i) differs |= a.all[i] != a.mine[i % a.mine.size()];
    }
    if (!ranks_.world.any(differs)) return;
    std::string mine;
    for (const Among& a : among_)
        if (mine.empty()) mine = differing(a);
    Finding f{.verdict = "replicas", .step = step, .first_sample = plan.first_sample, .samples = plan.samples,
              .seen = "ranks hold different bits of the same parameters", .where = {}, .advice = {}, .dump = {}};
    for (const std::string& line : gather_strings(ranks_.world, mine))
        if (!line.empty()) f.where += "  " + line + "\n";
    f.advice = concat("The memory of a rank named, or what it received, is wrong, in this step or one of the ", interval_,
                      " before it. Take that machine out and start again; this state was not saved");
    f.code = ExitCode::fault;
    findings_.add(std::move(f));
}

// What this rank has to say: where most others agree against it, or nobody can be told to be right. Empty where it is right.
std::string Replicas::differing(const Among& a) const {
    const int n = a.group.size();
    for (std::size_t i = 0; i < a.params.size(); ++i) {
        std::vector<int> against;
        for (int r = 0; r < n; ++r)
            if (a.all[static_cast<std::size_t>(r) * a.mine.size() + i] != a.mine[i])
                against.push_back(a.group.members()[static_cast<std::size_t>(r)]);
        if (2 * static_cast<int>(against.size()) < n) continue;
        const std::string& name = model_.params().specs[static_cast<std::size_t>(a.params[i])].name;
        const bool even = 2 * static_cast<int>(against.size()) == n;
        return concat("rank ", ranks_.world.rank(), " on ", host_, ": the parameter ", name, " is not that of ", rank_list(against),
                      even ? "; which of them is right cannot be told" : "");
    }
    return {};
}

}  // namespace keel
