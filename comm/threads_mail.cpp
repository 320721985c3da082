// comm/threads_mail.cpp: messages between two ranks of a ThreadsGroup. The receiver copies from the sender's memory; a
// message is in the receiver's list until it is taken, or taken back, under the list's lock.
#include "comm/sum.h"
#include "comm/threads_group.h"

namespace keel {

void* ThreadsGroup::begin_send(Stream&, const std::byte* data, std::int64_t bytes, int to, int channel) {
    Place& own = place(rank());
    if (!own.free) own.free = &own.pool.emplace_back();
    ThreadsMessage* message = own.free;
    own.free = message->next;
    message->data = data, message->bytes = bytes;
    message->from = rank(), message->to = to, message->channel = channel;
    message->state = ThreadsMessage::posted;
    message->next = nullptr;
    Place& theirs = place(to);
    {
        const std::lock_guard lock(theirs.mutex);
        (theirs.first ? theirs.last->next : theirs.first) = message;
        theirs.last = message;
        theirs.posts.fetch_add(1);
    }
    theirs.mail.ring();
    return message;
}

void ThreadsGroup::receive_bytes(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel) {
    Place& own = place(rank());
    ThreadsMessage* message = nullptr;
    std::uint64_t looked = ~std::uint64_t{0};  // at the list, when it had so many posts
    const auto look = [&] {
        if (shared_->aborted) return true;
        if (own.posts.load() == looked) return false;
        const std::lock_guard lock(own.mutex);
        looked = own.posts.load();
        ThreadsMessage* before = nullptr;
        for (message = own.first; message; before = message, message = message->next)
            if (message->from == from && message->channel == channel) {
                (before ? before->next : own.first) = message->next;
                if (own.last == message) own.last = before;
                return true;
            }
        return false;
    };
    own.mail.wait(look, shared_->until(), shared_->spins);
    const int sender = members()[static_cast<std::size_t>(from)];
    const std::string what_failed = message && message->bytes == bytes
                                        ? std::string()
                                        : concat(name(), " group of ", rank_list(members()), ": receive of ", bytes,
                                                 " bytes from rank ", sender, " on channel ", channel);
    if (!message) fail_waiting(what_failed, {sender});
    const bool fits = message->bytes == bytes;
    const std::int64_t sent = message->bytes;
    if (fits) copy_bytes(&stream, data, message->data, bytes);
    message->wanted = bytes;
    message->state = fits ? ThreadsMessage::received : ThreadsMessage::refused;
    place(from).mail.ring();
    if (!fits) fail(what_failed, ": it sent ", sent, "; both must have the same size");
}

// False if the receiver has it, or is reading it.
bool ThreadsGroup::take_back(ThreadsMessage& wanted) {
    Place& theirs = place(wanted.to);
    const std::lock_guard lock(theirs.mutex);
    ThreadsMessage* before = nullptr;
    for (ThreadsMessage* message = theirs.first; message; before = message, message = message->next)
        if (message == &wanted) {
            (before ? before->next : theirs.first) = message->next;
            if (theirs.last == message) theirs.last = before;
            return true;
        }
    return false;
}

void ThreadsGroup::release(ThreadsMessage* message) {
    Place& own = place(rank());
    message->next = own.free;
    own.free = message;
}

void ThreadsGroup::drop_send(void* handle) noexcept {
    auto* message = static_cast<ThreadsMessage*>(handle);
    if (!take_back(*message))
        place(rank()).mail.wait([&] { return message->state != ThreadsMessage::posted; },
                                Signal::Clock::time_point::max(), 0);
    release(message);
}

void ThreadsGroup::end_send(Stream&, void* handle) {
    auto* message = static_cast<ThreadsMessage*>(handle);
    const auto done = [&] { return message->state != ThreadsMessage::posted; };
    place(rank()).mail.wait([&] { return done() || shared_->aborted; }, shared_->until(), shared_->spins);
    const bool gone = !done();
    const bool refused = message->state == ThreadsMessage::refused;
    const std::int64_t bytes = message->bytes, wanted = message->wanted;
    const int to = members()[static_cast<std::size_t>(message->to)], channel = message->channel;
    if (!gone && !refused) return release(message);
    drop_send(message);
    const std::string what = concat(name(), " group of ", rank_list(members()), ": send of ", bytes, " bytes to rank ",
                                    to, " on channel ", channel);
    if (refused) fail(what, ": it wants ", wanted, "; both must have the same size");
    if (gone) fail_waiting(what, {to});
}

}  // namespace keel
