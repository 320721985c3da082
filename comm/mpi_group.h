// comm/mpi_group.h: the Group of one rank under MPI. All of it is messages between two ranks, posted together and
// polled, because only then can a rank say which peer is missing.
//
// Every collective begins with a greeting: each rank sends every other what it brings (n-1 messages of 128 bytes). They
// compare, and a short sum or a vote is done: its values were in the greeting. Otherwise the data follows.
#pragma once

#include <memory>
#include <vector>

#include "comm/mpi_shared.h"
#include "kernels/base/pages.h"

namespace keel {

class MpiGroup final : public Group {
public:
    // Collective over the members.
    MpiGroup(std::shared_ptr<MpiShared> shared, const std::string& name, std::vector<int> members, int rank);
    void abort(const std::string& why) noexcept override { shared_->abort(why); }

protected:
    void run(Stream* stream, const Call& call) override;
    void* begin_send(Stream&, const std::byte* data, std::int64_t bytes, int to, int channel) override;
    void end_send(Stream&, void* message) override;
    void drop_send(void* message) noexcept override;
    void receive_bytes(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel) override;

private:
    static constexpr std::int64_t inline_bytes = 64;
    struct Greeting {
        Call call;
        std::int64_t number;
        std::byte values[inline_bytes];
    };
    struct Message {
        MPI_Request request;
        std::int64_t bytes;
        int to, channel;
        bool free;
    };
    // What goes to and comes from one peer.
    struct Parcel {
        const std::byte* send = nullptr;
        std::byte* receive = nullptr;
        std::int64_t send_bytes = 0, receive_bytes = 0;
    };

    // Sends and receives parcels_[r] for every other rank r; fails in the name of `call`.
    void exchange(MPI_Comm comm, int tag, const Call* call);
    void make_communicator();
    void greet(const Call& call, std::int64_t value_bytes);
    void finish_inline(const Call& call);
    template <class PartOf> void reduce_parts(Stream* stream, const Call& call, std::byte* out, PartOf part_of);
    [[noreturn]] void fail_waiting(const std::string& what, const std::vector<int>& absent);
    std::string title() const;

    std::shared_ptr<MpiShared> shared_;
    MPI_Comm comm_ = MPI_COMM_NULL;
    Pages buffer_;
    std::vector<Greeting> greetings_;
    std::vector<Parcel> parcels_;
    std::vector<MPI_Request> requests_;
    std::vector<const std::byte*> ins_;
    std::vector<std::unique_ptr<Message>> messages_;
};

}  // namespace keel
