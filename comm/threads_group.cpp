#include "comm/threads_group.h"

#include <algorithm>
#include <cstring>

#include "comm/sum.h"

namespace keel {
namespace {

// Spinning pays only while every rank has a processor; measured on two cores with two ranks: an all-reduce of 1 MB in
// 18 us instead of 66 us.
constexpr int short_spin = 400;

[[noreturn]] void fail_peer(const std::string& what, std::source_location where = std::source_location::current()) {
    throw Error(what, where, ExitCode::peer);
}

}  // namespace

ThreadsGroupState::ThreadsGroupState(std::string n, std::vector<int> m)
    : name(std::move(n)), members(std::move(m)), places(members.size()) {}

void ThreadsGroupState::ring_all() noexcept {
    bell.ring();
    for (Place& place : places) place.mail.ring();
}

ThreadsShared::ThreadsShared(int n, const ThreadsOptions& options)
    : ranks(n), deadline_s(options.deadline_s), spins(n <= available_cpus() ? short_spin : 0) {
    if (!(deadline_s > 0)) fail_usage("run_threads: a deadline of ", deadline_s, " s; it must be positive");
}

void ThreadsShared::abort(int rank, const std::string& reason) noexcept {
    const std::lock_guard lock(mutex);
    if (aborted) return;
    left_rank = rank;
    try {
        why = reason;
    } catch (...) {  // no memory even for that: the rank's number must do
    }
    aborted = true;
    for (auto& [key, list] : groups)
        for (auto& state : list) state->ring_all();
}

std::string ThreadsShared::departure() {
    const std::lock_guard lock(mutex);
    return concat("rank ", left_rank, " left: ", why);
}

Signal::Clock::time_point ThreadsShared::until() const {
    return Signal::Clock::now() + std::chrono::duration_cast<Signal::Clock::duration>(
                                      std::chrono::duration<double>(std::min(deadline_s, 1e9)));
}

std::shared_ptr<ThreadsGroupState> ThreadsShared::group(const std::string& name, const std::vector<int>& members,
                                                        std::size_t nth) {
    const std::lock_guard lock(mutex);
    auto& list = groups[{name, members}];
    if (list.size() <= nth) list.push_back(std::make_shared<ThreadsGroupState>(name, members));
    return list[nth];
}

ThreadsGroup::ThreadsGroup(std::shared_ptr<ThreadsShared> shared, std::shared_ptr<ThreadsGroupState> state, int rank)
    : Group(state->name, state->members, rank), shared_(std::move(shared)), state_(std::move(state)),
      ins_(members().size()), outs_(members().size()) {
    if (!meet()) fail_waiting(concat(name(), " group of ", rank_list(members()), ": making it"), missing());
}

void ThreadsGroup::abort(const std::string& why) noexcept {
    shared_->abort(members()[static_cast<std::size_t>(rank())], why);
}

std::vector<int> ThreadsGroup::missing() const {
    std::vector<int> ranks;
    for (std::size_t r = 0; r < members().size(); ++r)
        if (state_->places[r].arrived < meetings_) ranks.push_back(members()[r]);
    return ranks;
}

void ThreadsGroup::fail_waiting(const std::string& what, const std::vector<int>& absent) const {
    const std::string who = absent.empty() ? std::string() : rank_list(absent);
    if (shared_->aborted)
        fail_peer(concat(what, ": ", shared_->departure(), who.empty() ? "" : concat(" (missing: ", who, ")")));
    if (who.empty())
        fail_peer(concat(what, ": the other ranks have given up waiting, or this group has failed before"));
    fail_peer(concat(what, ": ", who, " did not come within ", shared_->deadline_s, " s"));
}

bool ThreadsGroup::meet() {
    auto& entered = state_->entered;
    constexpr std::uint64_t broken = ThreadsGroupState::broken;
    const std::uint64_t all = ++meetings_ * static_cast<std::uint64_t>(size());
    place(rank()).arrived = meetings_;
    std::uint64_t now = entered.load();
    do {
        if (now & broken) return false;
    } while (!entered.compare_exchange_weak(now, now + 1));
    if (now + 1 == all) {
        state_->bell.ring();
        return true;
    }
    state_->bell.wait([&] { return entered.load() >= all || shared_->aborted.load(); }, shared_->until(),
                      shared_->spins);
    now = entered.load();
    while (now < all)  // not complete: a peer has left, or the time is over
        if (entered.compare_exchange_weak(now, now | broken)) {
            state_->bell.ring();
            return false;
        }
    return (now & ~broken) >= all;
}

void ThreadsGroup::meet_again() {
    auto& entered = state_->entered;
    const std::uint64_t all = ++meetings_ * static_cast<std::uint64_t>(size());
    place(rank()).arrived = meetings_;
    if (entered.fetch_add(1) + 1 == all) state_->bell.ring();
    else state_->bell.wait([&] { return entered.load() >= all; }, Signal::Clock::time_point::max(), shared_->spins);
}

void ThreadsGroup::run(Stream* stream, const Call& call) {
    parity_ ^= 1;
    Place& own = place(rank());
    const std::int64_t part = call.bytes(), n = size(), self = rank();
    own.calls[parity_] = call;
    const bool sums = call.kind == Collective::all_reduce || call.kind == Collective::all_reduce_max;
    const bool vote = call.kind == Collective::barrier || call.kind == Collective::any || call.kind == Collective::all;
    const bool small = vote || (sums && part <= ThreadsGroupState::inline_bytes);
    if (small && part > 0) std::memcpy(own.values[parity_].data(), call.in, static_cast<std::size_t>(part));
    if (!meet()) fail_waiting(describe(call), missing());
    for (int r = 1; r < n; ++r)
        if (!call_of(r).agrees(call_of(0))) fail_disagreement([&](int q) { return call_of(q); });
    if (small) return run_inline(call);
    if (part == 0) return;

    switch (call.kind) {
        case Collective::all_reduce:
        case Collective::all_reduce_max: {
            // Each rank sums its slice of all vectors and writes the sum into all of them: nobody else touches that
            // slice.
            const std::int64_t slice = ceil_div(ceil_div(call.count, n), 64) * 64,
                               begin = std::min(call.count, self * slice);
            for (int r = 0; r < n; ++r) {
                ins_[static_cast<std::size_t>(r)] = call_of(r).in + begin * call.width;
                outs_[static_cast<std::size_t>(r)] = call_of(r).out + begin * call.width;
            }
            reduce_in_order(stream, call, ins_, outs_, std::min(call.count, begin + slice) - begin);
            break;
        }
        case Collective::reduce_scatter:
            for (int r = 0; r < n; ++r) ins_[static_cast<std::size_t>(r)] = call_of(r).in + self * part;
            outs_[0] = call.out;
            reduce_in_order(stream, call, ins_, {outs_.data(), 1}, call.count);
            break;
        case Collective::all_gather:
            for (int r = 0; r < n; ++r) copy_bytes(stream, call.out + r * part, call_of(r).in, part);
            break;
        case Collective::broadcast: copy_bytes(stream, call.out, call_of(call.root).in, part); break;
        case Collective::all_to_all:
            for (int r = 0; r < n; ++r) copy_bytes(stream, call.out + r * part, call_of(r).in + self * part, part);
            break;
        default: break;
    }
    meet_again();
}

void ThreadsGroup::run_inline(const Call& call) {
    const auto value = [&](int r) { return place(r).values[parity_].data(); };
    if (call.kind == Collective::any || call.kind == Collective::all) {
        bool some = false, every = true;
        for (int r = 0; r < size(); ++r) {
            bool opinion;
            std::memcpy(&opinion, value(r), sizeof opinion);
            some |= opinion, every &= opinion;
        }
        const bool answer = call.kind == Collective::any ? some : every;
        std::memcpy(call.out, &answer, sizeof answer);
    } else if (call.kind != Collective::barrier && call.count > 0) {
        for (int r = 0; r < size(); ++r) ins_[static_cast<std::size_t>(r)] = value(r);
        outs_[0] = call.out;
        reduce_in_order(nullptr, call, ins_, {outs_.data(), 1}, call.count);
    }
}

}  // namespace keel
