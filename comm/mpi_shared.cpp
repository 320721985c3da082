#include "comm/mpi_shared.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/base/stream.h"

namespace keel {
namespace {

constexpr int control_tag = 1;
constexpr int polls_per_look = 16;         // at `control` and at the clock
constexpr int polls_per_nap = 8;           // of the mover: each moves a few fragments of a long message

void nap() {
    const timespec time{0, 50'000};        // as fine as a kernel's timer slack
    nanosleep(&time, nullptr);
}

MpiClock::duration seconds(double s) {
    return std::chrono::duration_cast<MpiClock::duration>(std::chrono::duration<double>(std::min(s, 1e9)));
}

// MPI_Abort asks mpirun to end all ranks, and waits to be ended. If the network is cut, mpirun may wait for ever.
void leave_soon(int code) noexcept {
    try {
        std::thread([code] {
            std::this_thread::sleep_for(std::chrono::seconds(10));
            std::_Exit(code);
        }).detach();
    } catch (...) {  // no thread to be had
    }
}

std::string what_of(std::exception_ptr error) noexcept {
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& e) {
        return e.what();
    } catch (...) {
        return "an exception of unknown type";
    }
}

}  // namespace

void check_mpi(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    fail(concat(call, ": ", text));
}

MpiShared::MpiShared(const MpiOptions& o) : options(o) {
    if (!(options.deadline_s > 0)) fail_usage("run_mpi: a deadline of ", options.deadline_s, " s; it must be positive");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // inherited by what is made of it
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &control), "MPI_Comm_dup");
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &making), "MPI_Comm_dup");
    MPI_Comm machine = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine),
              "MPI_Comm_split_type");
    MPI_Comm_rank(machine, &local_rank);
    MPI_Comm_size(machine, &local_size);
    MPI_Comm_free(&machine);
    farewells_.assign(static_cast<std::size_t>(size), -1);
    busy_polls = local_size <= available_cpus() ? 20000 : 200;
    mover_ = std::thread([this] {
        while (!quit_) {
            sending_.wait([&] { return quit_ || sends_ > 0; }, Signal::Clock::time_point::max(), 0);
            for (; !quit_ && sends_ > 0; nap())
                for (int i = 0; i < polls_per_nap; ++i) poll();
        }
    });
}

MpiShared::~MpiShared() {
    quit_ = true;
    sending_.ring();
    mover_.join();
}

void MpiShared::count_send(int change) {
    if ((sends_ += change) == 1 && change > 0) sending_.ring();
}

void MpiShared::tell_all(const Note& note) {
    // Short enough to be on its way although nobody waits for it; the requests are never looked at again.
    Note& kept = notes_[note.kind] = note;
    for (int other = 0; other < size; ++other) {
        MPI_Request request;
        if (other != rank &&
            MPI_Isend(&kept, sizeof kept, MPI_BYTE, other, control_tag, control, &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    }
}

void MpiShared::abort(const std::string& why) noexcept {
    try {
        {
            const std::lock_guard lock(mutex_);
            if (aborted) return;
            left_rank_ = rank;
            why_ = why;
            aborted = true;
        }
        Note note{Note::left, rank, 0, ""};
        std::strncpy(note.why, why.c_str(), sizeof note.why - 1);
        tell_all(note);
    } catch (...) {  // no memory: the peers learn of it by their deadline
    }
}

std::string MpiShared::departure() {
    const std::lock_guard lock(mutex_);
    return concat("rank ", left_rank_, " left: ", why_);
}

void MpiShared::poll() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;  // another thread is looking
    for (;;) {
        int there = 0;
        MPI_Message message;
        if (MPI_Improbe(MPI_ANY_SOURCE, control_tag, control, &there, &message, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
            !there)
            return;
        Note note{};
        MPI_Mrecv(&note, sizeof note, MPI_BYTE, &message, MPI_STATUS_IGNORE);
        if (note.kind == Note::farewell) farewells_[static_cast<std::size_t>(note.rank)] = note.code;
        if (note.kind == Note::left && !aborted) {
            left_rank_ = note.rank;
            why_ = note.why;
            aborted = true;
        }
    }
}

MpiShared::Pause::Pause(MpiShared& shared)
    : shared_(shared), until_(MpiClock::now() + seconds(shared.options.deadline_s)) {}

bool MpiShared::Pause::again() {
    if (++polls_ % polls_per_look == 0 || polls_ > shared_.busy_polls) {
        shared_.poll();
        if (shared_.aborted || MpiClock::now() > until_) return false;
    }
    if (polls_ > shared_.busy_polls) {
        nap();
    } else {
        sched_yield();
    }
    return true;
}

bool MpiShared::wait(std::span<MPI_Request> requests) {
    const int n = static_cast<int>(requests.size());
    const auto done = [&] {
        int all = 0;
        check_mpi(MPI_Testall(n, requests.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
        return all != 0;
    };
    if (wait_for(done)) return true;
    for (MPI_Request& request : requests) {
        int complete = 0;
        MPI_Test(&request, &complete, MPI_STATUS_IGNORE);
    }
    return false;
}

void MpiShared::leave(std::exception_ptr error, const std::function<int(std::exception_ptr)>& complain) noexcept {
    const std::string why = what_of(error);
    abort(why);
    int code = static_cast<int>(ExitCode::failure);
    try {
        code = complain(error);
        Note note{Note::farewell, rank, code, ""};
        tell_all(note);
    } catch (...) {  // cannot even say so
    }
    constexpr int peer = static_cast<int>(ExitCode::peer);
    const auto until = MpiClock::now() + seconds(options.farewell_s + (code == peer ? 1 : 0));
    const auto others_done = [&] {
        poll();
        const std::lock_guard lock(mutex_);
        bool all = true, cause_elsewhere = false;
        for (int r = 0; r < size; ++r) {
            const int theirs = farewells_[static_cast<std::size_t>(r)];
            if (r == rank) continue;
            all = all && theirs != -1;
            cause_elsewhere = cause_elsewhere || (theirs != -1 && theirs != peer);
        }
        return all && (code != peer || !cause_elsewhere);
    };
    while (!others_done() && MpiClock::now() < until) {
        nap();
    }
    leave_soon(code);
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
}

}  // namespace keel
