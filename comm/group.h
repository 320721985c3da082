// comm/group.h: the ranks that decide and sum together. Made once, by World::group, and passed in; nobody asks for a
// global rank.
//
// A group of n ranks is n Group objects, one per rank. All ranks of a group call the same collectives in the same
// order, with equally many elements of the same type (zero is legal); afterwards every rank holds the same bits. Sums
// are formed element by element in the order of ranks, x0 + x1 + …, whatever the transport, the time of arrival and the
// number of threads. A vote is a collective too: each rank brings its opinion, all leave with one answer.
//
// Order     calls on one Group come from one thread at a time. Different groups of a rank may be used by different
//           threads at once. Done on return, but for `send`, and on a stream of a GPU (comm/nccl.h), where memory of the
//           GPU is what it will be when the stream gets there. Nothing is allocated on the heap by a collective.
// Views     contiguous. No two may overlap, but where "may be" grants it.
// Errors    every rank of the group throws Error when ranks disagree (another collective, type, count or root; the
//           message says who brought what), when one has left (abort) and when one does not come within the World's
//           deadline; the message names the group, the collective, its number in the group and who is missing.
//           ExitCode::peer marks the last two, which are consequences. The group cannot be used afterwards. What a rank
//           can see alone (parts that are not equal, views that overlap, a rank that is none) is refused before
//           anything is sent.
// Traffic   counted per rank in bytes, by the formula given with each collective, whatever the transport moves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/calls.h"
#include "comm/under_way.h"
#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

enum class Collective : std::uint8_t {
    all_reduce, all_reduce_max, reduce_scatter, all_gather, broadcast, all_to_all, barrier, any, all
};
enum class Element : std::uint8_t { f32, f64, bf16, f16, i64, raw };  // raw: moved, never summed

struct Traffic {  // bytes this rank has sent; all_reduce_max is in all_reduce; votes and barriers are not counted
    std::int64_t all_reduce = 0, reduce_scatter = 0, all_gather = 0, broadcast = 0, all_to_all = 0, send = 0;
    std::int64_t total() const { return all_reduce + reduce_scatter + all_gather + broadcast + all_to_all + send; }
};

std::string rank_list(std::span<const int> ranks);  // "ranks 0,1,2", for messages

class Group;

// A message under way. Move-only, and dies before its group. Give it to wait() before the memory it was sent from changes
// or goes; one that dies unwaited (an exception) takes the message back if nobody has received it; over MPI nothing can,
// and the rank must leave then.
class Ticket {
public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept
        : group_(std::exchange(other.group_, nullptr)), message_(std::exchange(other.message_, nullptr)) {}
    Ticket& operator=(Ticket&& other) noexcept {
        std::swap(group_, other.group_);
        std::swap(message_, other.message_);
        return *this;
    }
    ~Ticket();
    explicit operator bool() const { return group_ != nullptr; }  // still to be waited for

private:
    friend class Group;
    Group* group_ = nullptr;
    void* message_ = nullptr;
};

class Group {
public:
    Group(std::string name, std::vector<int> members, int rank);
    virtual ~Group() = default;
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int rank() const { return rank_; }                                 // of this object, in [0, size)
    int size() const { return static_cast<int>(members_.size()); }
    const std::string& name() const { return name_; }                  // "tp", "dp_cp", …
    const std::vector<int>& members() const { return members_; }       // rank of the group → rank of the world

    // Sums x over the group, in place. T is float, double, std::int64_t (wraps around), bf16 or f16 (summed in float,
    // rounded once). Each rank sends 2 (n-1)/n of x.
    template <class T> void all_reduce(Stream& stream, View<T> x) {
        reduction<T>(stream, Collective::all_reduce, x, x, x.size());
    }
    // The largest over the group, in place; a NaN wins. T as above. Each rank sends 2 (n-1)/n of x.
    template <class T> void all_reduce_max(Stream& stream, View<T> x) {
        reduction<T>(stream, Collective::all_reduce_max, x, x, x.size());
    }
    // x, read, is n equal parts; afterwards shard, written, holds part `rank` of the sum. shard may be x's own part
    // `rank`; then the rest of x is unchanged. T as above. Each rank sends (n-1)/n of x.
    template <class T> void reduce_scatter(Stream& stream, View<T> shard, std::type_identity_t<View<const T>> x) {
        expect_parts("reduce_scatter: x", x.size(), shard.size());
        reduction(stream, Collective::reduce_scatter, shard, x, shard.size());
    }
    // x, written, is n equal parts: part r is the shard of rank r. shard may be x's own part `rank`. Each rank sends
    // n-1 shards.
    template <class T> void all_gather(Stream& stream, View<T> x, std::type_identity_t<View<const T>> shard) {
        expect_parts("all_gather: x", x.size(), shard.size());
        movement(stream, Collective::all_gather, x, shard, shard.size());
    }
    // x of rank `root` is read, x of the others written. The root sends n-1 times x.
    template <class T> void broadcast(Stream& stream, View<T> x, int root) {
        expect_rank("broadcast: root", root);
        movement(stream, Collective::broadcast, x, View<const T>(x), x.size(), root);
    }
    // Both are n equal parts: part r of out, written, is part `rank` of rank r's in. Each rank sends (n-1)/n of in.
    template <class T> void all_to_all(Stream& stream, View<T> out, std::type_identity_t<View<const T>> in) {
        expect_parts("all_to_all: in", in.size(), in.size() / size());
        if (out.size() != in.size()) fail("all_to_all: out is ", out.shape(), ", but in is ", in.shape());
        movement(stream, Collective::all_to_all, out, in, in.size() / size());
    }

    // Returns at once; x must stay as it is until wait(ticket). Messages of one (sender, receiver, channel) arrive in
    // the order sent; 0 ≤ channel < max_channels. Sends n bytes. Memory grows by one small record when more messages
    // than ever before are under way.
    static constexpr int max_channels = 1 << 14;
    template <class T> [[nodiscard]] Ticket send(Stream& stream, View<T> x, int to, int channel) {
        static_assert(std::is_trivially_copyable_v<T>);
        expect_peer("send: to", to, channel);
        expect_contiguous("send: x", x);
        return post(stream, reinterpret_cast<const std::byte*>(x.data()), x.bytes(), to, channel);
    }
    // x, written: the next message of that sender and channel, which must have its size; if not, the receiver fails and
    // says both sizes, and so does the sender in wait().
    template <class T> void receive(Stream& stream, View<T> x, int from, int channel) {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);
        expect_peer("receive: from", from, channel);
        expect_contiguous("receive: x", x);
        take(stream, reinterpret_cast<std::byte*>(x.data()), x.bytes(), from, channel);
    }
    // The message was received, its memory is free again. The ticket is empty afterwards; waiting for an empty one does
    // nothing.
    void wait(Stream& stream, Ticket& ticket);
    void wait(Stream& stream, Ticket&& ticket) { wait(stream, ticket); }

    void barrier();
    bool any(bool opinion);  // true if one rank says so
    bool all(bool opinion);  // true if every rank says so

    // Every wait of every rank of the World ends, on all groups, with an Error that says who left and why. The first to
    // leave is the one that is named. A rank that must die calls this first, so that its peers fail and do not wait.
    virtual void abort(const std::string& why) noexcept = 0;

    // What a transport that moves the memory of GPUs (comm/nccl.h) works in: collectives of such memory need it, of a size
    // that nccl_buffer_bytes gives. They are then made on one stream at a time; groups whose collectives are made on the
    // same stream may share the memory, which stays until all that was queued is done. Collective, with as much on every
    // rank; later a rank alone may lend other memory of that size. Nothing to others.
    virtual void lend(View<std::byte> buffer) { (void)buffer; }

    const Traffic& traffic() const { return traffic_; }
    // How long callers of this object were in collectives, receives and waits: moving bytes and waiting for the others.
    double seconds() const { return seconds_; }
    // From now on, what is being waited for is noted there; it outlives the group.
    void note_in(UnderWay* under_way) { under_way_ = under_way; }
    std::int64_t collectives() const { return number_; }  // how many were begun, votes and barriers included
    // From now on every call is noted there, by the thread that makes it; null ends that. It outlives the group, or that.
    void note_calls(Calls* calls) { calls_ = calls; }

    // What one rank brings to a collective; ranks compare kind, element, count and root. For the transports and their
    // errors.
    struct Call {
        Collective kind;
        Element element;
        std::int32_t width;        // bytes of an element
        std::int32_t root;         // broadcast; else 0
        std::int64_t count;        // elements of the part that is equal on all ranks: x, shard, or a part of in
        const std::byte* in;
        std::byte* out;
        std::int64_t bytes() const { return count * width; }
        bool agrees(const Call& other) const {
            return kind == other.kind && element == other.element && width == other.width && root == other.root &&
                   count == other.count;
        }
        std::string text() const;  // "all_reduce of 128 float32"
    };

protected:
    friend class Ticket;
    // The transport: does what the call says, with all ranks of the group, of which there are two or more. `stream` is
    // null for votes and barriers.
    virtual void run(Stream* stream, const Call& call) = 0;
    virtual void* begin_send(Stream& stream, const std::byte* data, std::int64_t bytes, int to, int channel) = 0;
    virtual void end_send(Stream& stream, void* message) = 0;  // waits
    virtual void drop_send(void* message) noexcept = 0;    // takes it back, or waits for a receiver that is reading it
    virtual void receive_bytes(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel) = 0;

    // For a transport over another one: the call as `group`'s own.
    static void perform_on(Group& group, Stream* stream, const Call& call) { group.perform(stream, call); }

    // "tp group of ranks 0,1: all_reduce of 128 float32 (#12)", where #12 is the collective now under way.
    std::string describe(const Call& call) const;
    // Of all ranks, once they are known to disagree. `of(r)` is what rank r brought.
    template <class Of> [[noreturn]] void fail_disagreement(Of of) const {
        std::vector<Call> calls;
        for (int r = 0; r < size(); ++r) calls.push_back(of(r));
        fail_disagreement(calls);
    }

private:
    template <class T> static constexpr Element element() {
        if constexpr (std::is_same_v<T, float>) return Element::f32;
        else if constexpr (std::is_same_v<T, double>) return Element::f64;
        else if constexpr (std::is_same_v<T, bf16>) return Element::bf16;
        else if constexpr (std::is_same_v<T, f16>) return Element::f16;
        else if constexpr (std::is_same_v<T, std::int64_t>) return Element::i64;
        else return Element::raw;
    }
    template <class T>
    void movement(Stream& stream, Collective kind, View<T> out, View<const T> in, std::int64_t count, int root = 0) {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);
        expect_contiguous("a collective's output", out);
        expect_contiguous("a collective's input", in);
        perform(&stream, {kind, element<T>(), sizeof(T), root, count, reinterpret_cast<const std::byte*>(in.data()),
                          reinterpret_cast<std::byte*>(out.data())});
    }
    template <class T>
    void reduction(Stream& stream, Collective kind, View<T> out, View<const T> in, std::int64_t count) {
        static_assert(element<T>() != Element::raw, "sums are of float, double, bf16, f16 and std::int64_t");
        movement(stream, kind, out, in, count);
    }
    void expect_parts(const char* what, std::int64_t all, std::int64_t part) const;
    void expect_rank(const char* what, int rank) const;
    void expect_peer(const char* what, int rank, int channel) const;
    void perform(Stream* stream, const Call& call);
    bool vote(Collective kind, bool opinion);
    Ticket post(Stream& stream, const std::byte* data, std::int64_t bytes, int to, int channel);
    void take(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel);
    [[noreturn]] void fail_disagreement(const std::vector<Call>& calls) const;

    std::string name_;
    std::vector<int> members_;
    std::string whole_name_;  // "dp_cp group of ranks 0,1"
    int rank_;
    UnderWay* under_way_ = nullptr;
    std::int64_t number_ = 0;
    Traffic traffic_;
    double seconds_ = 0;
    Calls* calls_ = nullptr;
};

// The group of one: what a single process with a single rank has. Every collective is the identity.
class SoloGroup final : public Group {
public:
    explicit SoloGroup(std::string name = "solo", int world_rank = 0) : Group(std::move(name), {world_rank}, 0) {}
    void abort(const std::string&) noexcept override {}

protected:
    // There is no peer: collectives are the identity and messages are refused before they come here.
    void run(Stream*, const Call&) override {}
    void* begin_send(Stream&, const std::byte*, std::int64_t, int, int) override { return nullptr; }
    void end_send(Stream&, void*) override {}
    void drop_send(void*) noexcept override {}
    void receive_bytes(Stream&, std::byte*, std::int64_t, int, int) override {}
};

}  // namespace keel
