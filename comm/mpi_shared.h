// comm/mpi_shared.h: what the groups of one process share under MPI: who has left, and how to wait.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi.h"
#include "comm/signal.h"

namespace keel {

using MpiClock = std::chrono::steady_clock;

// Throws what MPI says; "MPI_Isend: …".
void check_mpi(int code, const char* call);

struct MpiShared {
    explicit MpiShared(const MpiOptions& options);  // collective over all processes
    ~MpiShared();

    const MpiOptions options;
    int rank = 0, size = 1, local_rank = 0, local_size = 1;
    int busy_polls = 0;                  // before a waiter sleeps between polls; fewer where ranks share processors
    MPI_Comm control = MPI_COMM_NULL;    // who left
    MPI_Comm making = MPI_COMM_NULL;     // members of a group that is being made
    std::atomic<bool> aborted{false};

    // Tells every rank; the first departure that a rank learns of is the one it names.
    void abort(const std::string& why) noexcept;
    std::string departure();             // "rank 2 left: out of memory"
    void poll();                         // looks for news on `control`; any thread

    // A send has begun (1) or ended (-1). MPI moves a long message only while its sender is in some call of MPI: over
    // TCP it would lie there until the sender has computed whatever comes next. So a thread of ours calls, for as long
    // as any send is under way.
    void count_send(int change);

    // Until all requests are complete. False when a peer has left or the deadline has passed; requests that are
    // complete are then MPI_REQUEST_NULL, others still under way.
    bool wait(std::span<MPI_Request> requests);
    // The same for anything else that can be asked again and again.
    template <class Done> bool wait_for(Done done) {
        Pause pause(*this);
        while (!done())
            if (!pause.again()) return false;
        return true;
    }

    // [[noreturn]]: see run_mpi.
    [[noreturn]] void leave(std::exception_ptr error, const std::function<int(std::exception_ptr)>& complain) noexcept;

private:
    // One wait: gives way between polls, then sleeps.
    class Pause {
    public:
        explicit Pause(MpiShared& shared);
        bool again();  // false: no more

    private:
        MpiShared& shared_;
        MpiClock::time_point until_;
        int polls_ = 0;
    };
    struct Note {  // on `control`
        enum Kind : int { left, farewell };
        int kind, rank, code;
        char why[500];
    };
    void tell_all(const Note& note);

    Note notes_[2];     // on their way to the peers, by kind

    std::atomic<int> sends_{0};
    std::atomic<bool> quit_{false};
    Signal sending_;
    std::thread mover_;
    std::mutex mutex_;  // of what follows, and of receiving on `control`
    int left_rank_ = -1;
    std::string why_;
    std::vector<int> farewells_;  // exit code of each rank that has said farewell; -1 before
};

}  // namespace keel
