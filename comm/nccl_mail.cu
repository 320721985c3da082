// Messages of comm/nccl.h. Directly: the sender says where its data lies and which event writes it, the receiver's
// stream waits for that, copies, and says by a receipt which event ends the copy; the sender's stream waits for it
// before the memory changes. Staged: the data travels through memory of the host, by control.
#include <algorithm>
#include <chrono>

#include "comm/nccl_group.cuh"

namespace keel::KEEL_DEVICE {
namespace {

cudaStream_t native(Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

bool gpu_memory(const Stream& stream, const std::byte* data) {
    return stream.device() == nccl_device && lies_on_gpu(data);
}
void record(cudaEvent_t& event, Stream& stream) {
    if (!event) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    check(cudaEventRecord(event, native(stream)));
}

}  // namespace

std::string NcclGroup::describe_message(const char* verb, std::int64_t bytes, const char* where, int peer,
                                        int channel) const {
    return concat(name(), " group of ", rank_list(members()), ": ", verb, " of ", bytes, " bytes ", where, " rank ",
                  members()[static_cast<std::size_t>(peer)], " on channel ", channel);
}

void* NcclGroup::begin_send(Stream& stream, const std::byte* data, std::int64_t bytes, int to, int channel) {
    check(cudaSetDevice(shared_->gpu));
    Message* message = nullptr;
    for (Message& one : messages_)
        if (one.free) message = &one;
    if (!message) message = &messages_.emplace_back();
    message->free = false, message->to = to, message->channel = channel;
    message->header = {data, bytes, nullptr};
    const bool gpu = gpu_memory(stream, data);
    if (shared_->direct) {
        if (gpu) record(message->written, stream), message->header.written = message->written;
        message->ticket = control_->send(host_, View<Message::Header>(&message->header, {1}), to, channel);
        return message;
    }
    if (gpu) {
        std::byte* const staged = message->staged.of(bytes);
        check(cudaMemcpyAsync(staged, data, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, native(stream)));
        stream.synchronize();
        data = staged;
    }
    message->ticket = control_->send(host_, View<const std::byte>(data, {bytes}), to, channel);
    return message;
}

void NcclGroup::end_send(Stream& stream, void* handle) {
    auto& message = *static_cast<Message*>(handle);
    if (!shared_->direct) {
        control_->wait(host_, message.ticket);
        message.free = true;
        return;
    }
    const auto what = [&] { return describe_message("send", message.header.bytes, "to", message.to, message.channel); };
    Receipt::Note note{};
    try {
        receipts_->receive(host_, View<Receipt::Note>(&note, {1}), message.to, message.channel);
    } catch (const Error& e) {
        throw Error(concat(what(), ": ", e.what()), e.location(), e.code());
    }
    if (note.copied) {
        check(cudaSetDevice(shared_->gpu));
        check(cudaStreamWaitEvent(native(stream), note.copied, 0));
    }
    note.receipt->free = true;
    message.free = true;
    if (note.wanted != message.header.bytes) fail(what(), ": it wants ", note.wanted, "; both must have the same size");
}

// Control takes back what nobody has received; a receiver that has it is left with a receipt that nobody reads, and the
// rank must leave.
void NcclGroup::drop_send(void* handle) noexcept {
    auto& message = *static_cast<Message*>(handle);
    message.ticket = Ticket();
    message.free = true;
}

void NcclGroup::receive_bytes(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel) {
    check(cudaSetDevice(shared_->gpu));
    if (shared_->direct)
        receive_here(stream, data, bytes, from, channel);
    else
        receive_staged(stream, data, bytes, from, channel);
}

void NcclGroup::receive_here(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel) {
    const auto what = [&] { return describe_message("receive", bytes, "from", from, channel); };
    Message::Header header{};
    try {
        control_->receive(host_, View<Message::Header>(&header, {1}), from, channel);
    } catch (const Error& e) {
        throw Error(concat(what(), ": ", e.what()), e.location(), e.code());
    }
    Receipt* receipt = nullptr;
    for (Receipt& one : *receipts_of_ours_)
        if (one.free) receipt = &one;
    if (!receipt) receipt = &receipts_of_ours_->emplace_back();
    receipt->free = false;
    receipt->note = {receipt, bytes, nullptr};
    const bool fits = header.bytes == bytes, gpu = header.written != nullptr;
    const bool alike = bytes == 0 || gpu == gpu_memory(stream, data);
    if (fits && alike && gpu) {
        check(cudaStreamWaitEvent(native(stream), header.written, 0));
        check(cudaMemcpyAsync(data, header.data, static_cast<std::size_t>(bytes), cudaMemcpyDefault, native(stream)));
        record(receipt->copied, stream);
        receipt->note.copied = receipt->copied;
    } else if (fits && alike) {
        std::copy_n(header.data, bytes, data);
    }
    receipt->ticket = receipts_->send(host_, View<Receipt::Note>(&receipt->note, {1}), from, channel);
    if (!fits) fail(what(), ": it sent ", header.bytes, "; both must have the same size");
    if (!alike)
        fail(what(), ": one side has it in the memory of a GPU, the other in the host's; both must have the same");
}

// Receipts and their events stay until the senders have read them. A rank that dies does not wait for that: it takes
// back what nobody has read, and leaves the rest behind for peers that may just be reading.
void NcclGroup::settle_receipts() noexcept {
    bool settled = std::uncaught_exceptions() <= exceptions_;
    for (const Receipt& receipt : *receipts_of_ours_)
        while (settled && !receipt.free) {
            settled = !shared_->control.aborted();
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    if (settled) return;
    for (Receipt& receipt : *receipts_of_ours_) receipt.ticket = Ticket();
    static std::mutex mutex;
    static std::vector<std::unique_ptr<std::deque<Receipt>>> left_behind;
    const std::lock_guard lock(mutex);
    left_behind.push_back(std::exchange(receipts_of_ours_, std::make_unique<std::deque<Receipt>>()));
}

void NcclGroup::receive_staged(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel) {
    const bool gpu = gpu_memory(stream, data);
    std::byte* const to = gpu ? arriving_.of(bytes) : data;
    control_->receive(host_, View<std::byte>(to, {bytes}), from, channel);
    if (!gpu) return;
    check(cudaMemcpyAsync(data, to, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, native(stream)));
    stream.synchronize();  // before the next message arrives there
}

}  // namespace keel::KEEL_DEVICE
