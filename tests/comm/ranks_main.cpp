// One rank of mpi_test.cpp, started by mpirun: `comm_ranks suite`, `comm_ranks kill STEP`, `comm_ranks compute`, or the
// name of a failure case.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "comm/mpi.h"
#include "tests/comm/suite.h"

namespace keel {
namespace {

int complain(std::exception_ptr error, int rank) {
    int code = 1;
    std::string text;
    try {
        std::rethrow_exception(error);
    } catch (const Error& e) {
        text = e.what();
        code = static_cast<int>(e.code());
    } catch (const std::exception& e) {
        text = e.what();
    }
    std::printf("rank %d says: %s (code %d)\n", rank, text.c_str(), code);
    std::fflush(stdout);
    return code;
}

void run_suite(World& world) {
    comm_suite::require(std::string(world.transport()) == "mpi", "transport");
    comm_suite::require(world.local_rank() < world.local_size() && world.local_size() <= world.size(),
                        "ranks of this machine");
    for (const comm_suite::Case& one : comm_suite::cases()) {
        try {
            one.body(world);
        } catch (const Error& e) {
            throw Error(concat(one.name, ": ", e.what()), e.location(), e.code());
        }
        if (world.rank() == 0) std::printf("passed %s\n", one.name);
    }
}

// Sums and messages without end; the last rank is killed by the system at that step.
void be_killed(World& world, int step) {
    const auto g = world.everyone();
    Stream stream(1, 64, 64);
    std::vector<float> x(20000, 1.0f), y(20000);
    const int next = (g->rank() + 1) % g->size(), last = (g->rank() + g->size() - 1) % g->size();
    for (int i = 0;; ++i) {
        if (world.rank() == world.size() - 1 && i == step) std::raise(SIGKILL);
        g->all_reduce(stream, View<float>(x.data(), {20000}));
        Ticket ticket = g->send(stream, View<float>(x.data(), {20000}), next, 0);
        g->receive(stream, View<float>(y.data(), {20000}), last, 0);
        g->wait(stream, ticket);
    }
}

// A long message arrives while its sender is busy with something that is not MPI.
void send_and_compute(World& world) {
    const auto g = world.everyone("pp");
    Stream stream(1, 64, 64);
    std::vector<float> x(1 << 18, static_cast<float>(world.rank()));
    const View<float> all(x.data(), {1 << 18});
    g->barrier();
    const auto begin = std::chrono::steady_clock::now();
    if (world.rank() == 0) {
        Ticket ticket = g->send(stream, all, 1, 0);
        std::this_thread::sleep_for(std::chrono::seconds(4));
        g->wait(stream, ticket);
    } else {
        g->receive(stream, all, 0, 0);
        comm_suite::require(x.back() == 0, "what was sent");
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        comm_suite::require(seconds < 3, "it took as long as the sender computed: ", seconds);
    }
}

}  // namespace
}  // namespace keel

int main(int argc, char** argv) {
    using namespace keel;
    const std::string what = argc > 1 ? argv[1] : "suite";
    const Launch launch = read_launch(environment());
    MpiOptions options{.deadline_s = 30, .farewell_s = 1, .buffer_bytes = 1 << 18};
    std::function<void(World&)> body = run_suite;
    if (what == "kill") {
        options.deadline_s = 2;
        body = [step = std::atoi(argv[2])](World& world) { be_killed(world, step); };
    }
    if (what == "compute") body = send_and_compute;
    for (const comm_suite::FailureCase& one : comm_suite::failure_cases())
        if (what == one.name) options.deadline_s = one.deadline_s, body = one.body;
    run_mpi(launch, options, body, [&](std::exception_ptr error) { return complain(error, launch.rank); });
    if (launch.rank == 0) std::printf("all ranks are done\n");
}
