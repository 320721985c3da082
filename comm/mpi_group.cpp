#include "comm/mpi_group.h"

#include <algorithm>
#include <cstring>

#include "comm/sum.h"

namespace keel {
namespace {

constexpr int greeting_tag = 0, data_tag = 1, first_channel_tag = 2;
constexpr std::int64_t most_bytes = 1 << 30;  // of one MPI message, whose count is an int

[[noreturn]] void fail_peer(const std::string& what, std::source_location where = std::source_location::current()) {
    throw Error(what, where, ExitCode::peer);
}

}  // namespace

MpiGroup::MpiGroup(std::shared_ptr<MpiShared> shared, const std::string& name, std::vector<int> members, int rank)
    : Group(name, std::move(members), rank), shared_(std::move(shared)) {
    const auto n = static_cast<std::size_t>(size());
    greetings_.resize(n);
    parcels_.resize(n);
    requests_.assign(2 * n, MPI_REQUEST_NULL);
    ins_.resize(n);
    if (n == 1) return;
    make_communicator();
    buffer_ = Pages(shared_->options.buffer_bytes);
}

std::string MpiGroup::title() const { return concat(name(), " group of ", rank_list(members())); }

void MpiGroup::make_communicator() {
    // MPI would wait for ever for a member that does not come or has another list: they find each other first.
    struct Card {
        char text[256];
    };
    const std::string text = title();
    std::vector<Card> cards(static_cast<std::size_t>(size()));
    Card& own = cards[static_cast<std::size_t>(rank())];
    std::strncpy(own.text, text.c_str(), sizeof own.text - 1);
    const std::vector<int>& world = members();
    for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        const auto i = static_cast<std::size_t>(r);
        check_mpi(MPI_Irecv(&cards[i], sizeof(Card), MPI_BYTE, world[i], 0, shared_->making, &requests_[2 * i]),
                  "MPI_Irecv");
        check_mpi(MPI_Isend(&own, sizeof(Card), MPI_BYTE, world[i], 0, shared_->making, &requests_[2 * i + 1]),
                  "MPI_Isend");
    }
    if (!shared_->wait(requests_)) {
        std::vector<int> absent;
        for (std::size_t i = 0; i < cards.size(); ++i) {
            if (requests_[2 * i] == MPI_REQUEST_NULL) continue;
            absent.push_back(world[i]);
            MPI_Cancel(&requests_[2 * i]);  // its memory goes
        }
        fail_waiting(concat(text, ": making it"), absent);
    }
    for (std::size_t i = 0; i < cards.size(); ++i)
        if (std::strcmp(cards[i].text, own.text) != 0)
            fail(concat("rank ", shared_->rank, " makes the ", text, ", but rank ", world[i], " makes the ",
                        cards[i].text, "; ranks must make their groups in the same order"));
    MPI_Group everyone, some;
    MPI_Comm_group(shared_->making, &everyone);
    check_mpi(MPI_Group_incl(everyone, size(), world.data(), &some), "MPI_Group_incl");
    check_mpi(MPI_Comm_create_group(shared_->making, some, 1, &comm_), "MPI_Comm_create_group");
    MPI_Group_free(&some);
    MPI_Group_free(&everyone);
}

void MpiGroup::fail_waiting(const std::string& what, const std::vector<int>& absent) {
    const std::string who = absent.empty() ? std::string() : rank_list(absent);
    if (shared_->aborted)
        fail_peer(concat(what, ": ", shared_->departure(), who.empty() ? "" : concat(" (missing: ", who, ")")));
    fail_peer(concat(what, ": ", who.empty() ? "what was sent was not taken" : concat(who, " did not come"), " within ",
                     shared_->options.deadline_s, " s"));
}

void MpiGroup::exchange(MPI_Comm comm, int tag, const Call* call) {
    std::int64_t longest = 0;
    for (const Parcel& p : parcels_) longest = std::max({longest, p.send_bytes, p.receive_bytes});
    for (std::int64_t at = 0; at < longest; at += most_bytes) {
        const auto length = [at](std::int64_t bytes) {
            return static_cast<int>(std::clamp<std::int64_t>(bytes - at, 0, most_bytes));
        };
        for (int r = 0; r < size(); ++r) {
            const auto i = static_cast<std::size_t>(r);
            const Parcel& p = parcels_[i];
            if (r == rank()) continue;
            if (const int n = length(p.receive_bytes); n > 0)
                check_mpi(MPI_Irecv(p.receive + at, n, MPI_BYTE, r, tag, comm, &requests_[2 * i]), "MPI_Irecv");
        }
        for (int step = 1; step < size(); ++step) {  // everybody begins with another peer
            const int r = (rank() + step) % size();
            const auto i = static_cast<std::size_t>(r);
            const Parcel& p = parcels_[i];
            if (const int n = length(p.send_bytes); n > 0)
                check_mpi(MPI_Isend(p.send + at, n, MPI_BYTE, r, tag, comm, &requests_[2 * i + 1]), "MPI_Isend");
        }
        if (shared_->wait(requests_)) continue;
        std::vector<int> absent, idle;  // idle: came, and stopped before it took what it needs
        for (std::size_t i = 0; i < parcels_.size(); ++i) {
            if (requests_[2 * i + 1] != MPI_REQUEST_NULL) idle.push_back(members()[i]);
            if (requests_[2 * i] == MPI_REQUEST_NULL) continue;
            absent.push_back(members()[i]);
            MPI_Cancel(&requests_[2 * i]);
        }
        const std::string what = describe(*call);
        fail_waiting(absent.empty() ? concat(what, ", to ", rank_list(idle)) : what, absent);
    }
}

void MpiGroup::greet(const Call& call, std::int64_t value_bytes) {
    Greeting& own = greetings_[static_cast<std::size_t>(rank())];
    own.call = call;
    own.number = collectives();
    if (value_bytes > 0) std::memcpy(own.values, call.in, static_cast<std::size_t>(value_bytes));
    for (std::size_t i = 0; i < parcels_.size(); ++i)
        parcels_[i] = {reinterpret_cast<const std::byte*>(&own), reinterpret_cast<std::byte*>(&greetings_[i]),
                       sizeof own, sizeof own};
    exchange(comm_, greeting_tag, &call);
    for (const Greeting& theirs : greetings_)
        if (!theirs.call.agrees(call))
            fail_disagreement([&](int r) { return greetings_[static_cast<std::size_t>(r)].call; });
}

void MpiGroup::finish_inline(const Call& call) {
    if (call.kind == Collective::any || call.kind == Collective::all) {
        bool some = false, every = true;
        for (const Greeting& theirs : greetings_) {
            bool opinion;
            std::memcpy(&opinion, theirs.values, sizeof opinion);
            some |= opinion, every &= opinion;
        }
        const bool answer = call.kind == Collective::any ? some : every;
        std::memcpy(call.out, &answer, sizeof answer);
    } else if (call.kind != Collective::barrier && call.count > 0) {
        for (std::size_t i = 0; i < ins_.size(); ++i) ins_[i] = greetings_[i].values;
        std::byte* out = call.out;
        reduce_in_order(nullptr, call, ins_, {&out, 1}, call.count);
    }
}

// Sums one part of every rank's vector, this rank's own, which it writes to `out`: pieces of the others' come into the
// buffer, round by round, while pieces of their parts go to them. part_of(r) → {where rank r's part of this rank's
// vector begins, its elements}.
template <class PartOf> void MpiGroup::reduce_parts(Stream* stream, const Call& call, std::byte* out, PartOf part_of) {
    const std::int64_t width = call.width, n = size();
    const std::int64_t piece = std::max<std::int64_t>(64, shared_->options.buffer_bytes / (n - 1) / width / 64 * 64);
    std::int64_t longest = 0;
    for (int r = 0; r < n; ++r) longest = std::max(longest, part_of(r).second);
    for (std::int64_t at = 0; at < longest; at += piece) {
        const auto length = [&](int r) { return std::clamp<std::int64_t>(part_of(r).second - at, 0, piece); };
        const std::int64_t mine = length(rank());
        for (int r = 0, slot = 0; r < n; ++r) {
            const auto i = static_cast<std::size_t>(r);
            const std::byte* from = part_of(r).first + at * width;
            if (r == rank()) {
                ins_[i] = from;
                continue;
            }
            std::byte* place = buffer_.data() + slot++ * piece * width;
            parcels_[i] = {from, place, length(r) * width, mine * width};
            ins_[i] = place;
        }
        exchange(comm_, data_tag, &call);
        std::byte* to = out + at * width;
        reduce_in_order(stream, call, ins_, {&to, 1}, mine);
    }
}

void MpiGroup::run(Stream* stream, const Call& call) {
    const std::int64_t part = call.bytes(), n = size(), self = rank();
    const bool sums = call.kind == Collective::all_reduce || call.kind == Collective::all_reduce_max;
    const bool vote = call.kind == Collective::barrier || call.kind == Collective::any || call.kind == Collective::all;
    const bool small = vote || (sums && part <= inline_bytes);
    greet(call, small ? part : 0);
    if (small) return finish_inline(call);
    if (part == 0) return;
    const auto to_and_from = [&](auto send, auto receive) {  // (rank) → {pointer, bytes}
        for (int r = 0; r < n; ++r) {
            const auto [from, send_bytes] = send(r);
            const auto [to, receive_bytes] = receive(r);
            parcels_[static_cast<std::size_t>(r)] = {from, to, send_bytes, receive_bytes};
        }
        exchange(comm_, data_tag, &call);
    };
    using Read = std::pair<const std::byte*, std::int64_t>;
    using Write = std::pair<std::byte*, std::int64_t>;

    switch (call.kind) {
        case Collective::all_reduce:
        case Collective::all_reduce_max: {
            const std::int64_t slice = ceil_div(ceil_div(call.count, n), 64) * 64;
            const auto slice_of = [&](int r) {
                const std::int64_t begin = std::min(call.count, r * slice);
                return Write(call.out + begin * call.width, std::min(call.count, begin + slice) - begin);
            };
            reduce_parts(stream, call, slice_of(rank()).first, slice_of);
            const auto bytes_of = [&](int r) {
                const auto [at, count] = slice_of(r);
                return Write(at, count * call.width);
            };
            to_and_from([&](int) { return Read(bytes_of(rank())); }, bytes_of);
            break;
        }
        case Collective::reduce_scatter:
            reduce_parts(stream, call, call.out, [&](int r) { return Read(call.in + r * part, call.count); });
            break;
        case Collective::all_gather:
            to_and_from([&](int) { return Read(call.in, part); },
                        [&](int r) { return Write(call.out + r * part, part); });
            copy_bytes(stream, call.out + self * part, call.in, part);
            break;
        case Collective::broadcast:
            to_and_from([&](int) { return Read(call.in, call.root == self ? part : 0); },
                        [&](int r) { return Write(call.out, r == call.root ? part : 0); });
            break;
        case Collective::all_to_all:
            to_and_from([&](int r) { return Read(call.in + r * part, part); },
                        [&](int r) { return Write(call.out + r * part, part); });
            copy_bytes(stream, call.out + self * part, call.in + self * part, part);
            break;
        default: break;
    }
}

void* MpiGroup::begin_send(Stream&, const std::byte* data, std::int64_t bytes, int to, int channel) {
    if (bytes > most_bytes)
        fail(concat(title(), ": a message of ", bytes, " bytes; over MPI one can have ", most_bytes,
                    ". Send it in parts"));
    Message* message = nullptr;
    for (const auto& one : messages_)
        if (one->free) message = one.get();
    if (!message) message = messages_.emplace_back(std::make_unique<Message>()).get();
    *message = {MPI_REQUEST_NULL, bytes, to, channel, false};
    check_mpi(
        MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, first_channel_tag + channel, comm_, &message->request),
        "MPI_Isend");
    shared_->count_send(1);
    return message;
}

void MpiGroup::end_send(Stream&, void* handle) {
    auto* message = static_cast<Message*>(handle);
    message->free = shared_->wait({&message->request, 1});
    shared_->count_send(-1);
    if (message->free) return;
    const int to = members()[static_cast<std::size_t>(message->to)];
    fail_waiting(concat(title(), ": send of ", message->bytes, " bytes to rank ", to, " on channel ", message->channel),
                 {to});
}

// What MPI has begun to send cannot be taken back: the record stays, and the rank is about to leave.
void MpiGroup::drop_send(void* handle) noexcept {
    auto* message = static_cast<Message*>(handle);
    int done = 0;
    MPI_Test(&message->request, &done, MPI_STATUS_IGNORE);
    message->free = done != 0;
    shared_->count_send(-1);
}

void MpiGroup::receive_bytes(Stream&, std::byte* data, std::int64_t bytes, int from, int channel) {
    const auto what = [&] {
        return concat(title(), ": receive of ", bytes, " bytes from rank ", members()[static_cast<std::size_t>(from)],
                      " on channel ", channel);
    };
    const auto gone = [&] { fail_waiting(what(), {members()[static_cast<std::size_t>(from)]}); };
    MPI_Message message;
    MPI_Status status;
    const bool arrived = shared_->wait_for([&] {
        int there = 0;
        check_mpi(MPI_Improbe(from, first_channel_tag + channel, comm_, &there, &message, &status), "MPI_Improbe");
        return there != 0;
    });
    if (!arrived) gone();
    int sent = 0;
    MPI_Get_count(&status, MPI_BYTE, &sent);
    if (sent != bytes) fail(what(), ": it sent ", sent, "; both must have the same size");
    MPI_Request request;
    check_mpi(MPI_Imrecv(data, sent, MPI_BYTE, &message, &request), "MPI_Imrecv");
    if (!shared_->wait({&request, 1})) gone();
}

}  // namespace keel
