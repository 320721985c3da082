#include "comm/group.h"

#include <chrono>
#include <cstring>

#include "kernels/device_copy.h"
#include "kernels/gpu_range.h"

namespace keel {
namespace {

const char* name_of(Collective kind) {
    switch (kind) {
        case Collective::all_reduce: return "all_reduce";
        case Collective::all_reduce_max: return "all_reduce_max";
        case Collective::reduce_scatter: return "reduce_scatter";
        case Collective::all_gather: return "all_gather";
        case Collective::broadcast: return "broadcast";
        case Collective::all_to_all: return "all_to_all";
        case Collective::barrier: return "barrier";
        case Collective::any: return "any";
        case Collective::all: return "all";
    }
    return "?";
}

const char* name_of(Element element) {
    switch (element) {
        case Element::f32: return "float32";
        case Element::f64: return "float64";
        case Element::bf16: return "bfloat16";
        case Element::f16: return "float16";
        case Element::i64: return "int64";
        case Element::raw: break;
    }
    return "bytes";
}
std::string name_of(Element element, int width) {
    return element == Element::raw && width != 1 ? concat("elements of ", width, " bytes") : name_of(element);
}

bool is_vote(Collective kind) {
    return kind == Collective::barrier || kind == Collective::any || kind == Collective::all;
}

bool overlap(const std::byte* a, std::int64_t a_bytes, const std::byte* b, std::int64_t b_bytes) {
    return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

// Adds the time of its scope to `seconds`, also where an error ends it.
class Counted {
public:
    explicit Counted(double& seconds) : seconds_(seconds) {}
    ~Counted() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

private:
    double& seconds_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

std::string rank_list(std::span<const int> ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (i == 8 && ranks.size() > 16) return text + concat(",… ", ranks.back(), " (", ranks.size(), " ranks)");
        text += (i ? "," : "") + std::to_string(ranks[i]);
    }
    return text;
}

Ticket::~Ticket() {
    if (group_) group_->drop_send(message_);
}

Group::Group(std::string name, std::vector<int> members, int rank)
    : name_(std::move(name)), members_(std::move(members)), whole_name_(concat(name_, " group of ", rank_list(members_))),
      rank_(rank) {}

std::string Group::Call::text() const {
    if (is_vote(kind)) return name_of(kind);
    std::string text = concat(name_of(kind), " of ", count, " ", name_of(element, width));
    if (kind == Collective::broadcast) text += concat(" from the group's rank ", root);
    return text;
}

std::string Group::describe(const Call& call) const {
    return concat(whole_name_, ": ", call.text(), " (#", number_, ")");
}

void Group::fail_disagreement(const std::vector<Call>& calls) const {
    // Ranks that brought the same stand together, in the order of their first rank.
    std::string brought;
    std::vector<bool> told(calls.size());
    for (std::size_t r = 0; r < calls.size(); ++r) {
        if (told[r]) continue;
        std::vector<int> same;
        for (std::size_t q = r; q < calls.size(); ++q)
            if (calls[q].agrees(calls[r])) told[q] = true, same.push_back(members_[q]);
        brought += concat(brought.empty() ? "" : "; ", rank_list(same), " brought ", calls[r].text());
    }
    fail(concat(whole_name_, ": ranks disagree in collective #", number_, ": ", brought,
                "; every rank must make the same calls in the same order"));
}

void Group::expect_parts(const char* what, std::int64_t all, std::int64_t part) const {
    if (all != part * size())
        fail(concat(whole_name_, ": ", what, " has ", all, " elements, which is not ",
                    size(), " parts of ", part, "; pad it"));
}

void Group::expect_rank(const char* what, int rank) const {
    if (rank < 0 || rank >= size())
        fail(concat(whole_name_, ": ", what, " is ", rank, ", which is not in 0…",
                    size() - 1));
}

void Group::expect_peer(const char* what, int rank, int channel) const {
    expect_rank(what, rank);
    if (rank == rank_)
        fail(concat(whole_name_, ": ", what, " is the rank itself, ", rank));
    if (channel < 0 || channel >= max_channels)
        fail(
            concat(whole_name_, ": channel ", channel, " is not in 0…", max_channels - 1));
}

void Group::perform(Stream* stream, const Call& call) {
    ++number_;
    const std::int64_t part = call.bytes(), whole = part * size(), n = size();
    const auto own_part = [&](const std::byte* shard, const std::byte* x, const char* names) {
        if (overlap(shard, part, x, whole) && shard != x + rank_ * part)
            fail(concat(describe(call), ": ", names));
    };
    switch (call.kind) {
        case Collective::reduce_scatter:
            own_part(call.out, call.in, "shard overlaps x; it may only be x's own part");
            break;
        case Collective::all_gather:
            own_part(call.in, call.out, "shard overlaps x; it may only be x's own part");
            break;
        case Collective::all_to_all:
            if (overlap(call.in, whole, call.out, whole)) fail(concat(describe(call), ": in and out overlap"));
            break;
        default: break;
    }
    if (n == 1) {  // the identity, whatever the transport
        if (call.in == call.out || part == 0) return;
        if (stream && stream->device() != Device::cpu) copy_on_device(*stream, call.out, call.in, part);
        else std::memcpy(call.out, call.in, static_cast<std::size_t>(part));
        return;
    }
    {
        const Counted counted(seconds_);
        const Calls::Scope noted(
            calls_, {name_.c_str(), name_of(call.kind), number_, is_vote(call.kind) ? 0 : call.bytes(), -1, -1, 0});
        const bool vote = is_vote(call.kind), raw = call.element == Element::raw;
        const UnderWay::Scope scope(under_way_, {whole_name_.c_str(), name_of(call.kind), vote ? 0 : raw ? call.bytes() : call.count,
                                                 name_of(call.element), number_, -1});
        const GpuRange profiled(stream ? stream->device() : Device::cpu, name_of(call.kind));
        run(stream, call);
    }
    switch (call.kind) {
        case Collective::all_reduce:
        case Collective::all_reduce_max: traffic_.all_reduce += 2 * (n - 1) * part / n; break;
        case Collective::reduce_scatter: traffic_.reduce_scatter += (n - 1) * part; break;
        case Collective::all_gather: traffic_.all_gather += (n - 1) * part; break;
        case Collective::broadcast: traffic_.broadcast += rank_ == call.root ? (n - 1) * part : 0; break;
        case Collective::all_to_all: traffic_.all_to_all += (n - 1) * part; break;
        default: break;
    }
}

bool Group::vote(Collective kind, bool opinion) {
    bool answer = opinion;
    perform(nullptr, {kind, Element::raw, 1, 0, 1, reinterpret_cast<const std::byte*>(&opinion),
                      reinterpret_cast<std::byte*>(&answer)});
    return answer;
}

void Group::barrier() { vote(Collective::barrier, true); }
bool Group::any(bool opinion) { return vote(Collective::any, opinion); }
bool Group::all(bool opinion) { return vote(Collective::all, opinion); }

Ticket Group::post(Stream& stream, const std::byte* data, std::int64_t bytes, int to, int channel) {
    const Calls::Scope noted(calls_, {name_.c_str(), "send", 0, bytes, members_[static_cast<std::size_t>(rank_)],
                                      members_[static_cast<std::size_t>(to)], channel});
    Ticket ticket;
    ticket.message_ = begin_send(stream, data, bytes, to, channel);
    ticket.group_ = this;
    traffic_.send += bytes;
    return ticket;
}

void Group::take(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel) {
    const Counted counted(seconds_);
    const Calls::Scope noted(calls_, {name_.c_str(), "receive", 0, bytes, members_[static_cast<std::size_t>(from)],
                                      members_[static_cast<std::size_t>(rank_)], channel});
    const UnderWay::Scope scope(under_way_, {whole_name_.c_str(), "receive", bytes, "bytes", 0, from});
    receive_bytes(stream, data, bytes, from, channel);
}

void Group::wait(Stream& stream, Ticket& ticket) {
    if (!ticket) return;
    if (ticket.group_ != this)
        fail(concat(whole_name_, ": the ticket is of another group"));
    void* message = std::exchange(ticket.message_, nullptr);
    ticket.group_ = nullptr;
    const Counted counted(seconds_);
    const UnderWay::Scope scope(under_way_, {whole_name_.c_str(), "send, not yet taken", 0, "", 0, -1});
    end_send(stream, message);
}

}  // namespace keel
