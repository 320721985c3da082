// Ranks that do not come, leave, or bring the wrong thing. Four ranks each.
#include <chrono>
#include <thread>

#include "tests/comm/suite.h"

namespace keel::comm_suite {
namespace {

using Texts = std::vector<std::string>;

void sum(Group& g, std::int64_t n) {
    const Worker stream(1);
    Numbers<float> x(static_cast<std::size_t>(n), 1.0f);
    g.all_reduce(stream, View<float>(x.data(), {n}));
    stream.synchronize();
}

// Longer than any deadline here: this rank is stuck in something else.
void be_stuck(World&) { std::this_thread::sleep_for(std::chrono::milliseconds(2000)); }

void a_rank_that_does_not_come_is_named_with_the_collective(World& world) {
    const auto g = world.everyone("dp_cp");
    g->barrier();
    if (world.rank() == 2) return be_stuck(world);
    sum(*g, 1000);
}

void a_rank_that_does_not_join_a_group_is_named(World& world) {
    if (world.rank() == 3) return be_stuck(world);
    (void)world.everyone("tp");
}

void a_rank_that_throws_is_named_with_its_reason(World& world) {
    const auto g = world.everyone("tp");
    g->barrier();
    if (world.rank() == 1) fail("the chip is broken");
    sum(*g, 100000);
}

void different_counts_are_refused(World& world) {
    const auto g = world.everyone("tp");
    sum(*g, 8);
    sum(*g, world.rank() == 1 ? 1001 : 1000);
}

void different_collectives_are_refused(World& world) {
    const auto g = world.everyone("tp");
    if (world.rank() == 3) sum(*g, 5);
    else g->barrier();
}

void different_roots_are_refused(World& world) {
    const auto g = world.everyone("pp");
    const Worker stream(1);
    double x = 0;
    g->broadcast(stream, View<double>(&x, {1}), world.rank() == 0 ? 0 : 1);
}

void different_types_are_refused(World& world) {
    const auto g = world.everyone("tp");
    const Worker stream(1);
    std::int64_t n = 0;
    double x = 0;
    if (world.rank() == 0) g->all_reduce(stream, View<std::int64_t>(&n, {1}));
    else g->all_reduce(stream, View<double>(&x, {1}));
}

void a_message_that_is_not_sent_is_named(World& world) {
    const auto g = world.everyone("pp");
    const Worker stream(1);
    float x[16] = {};
    if (world.rank() == 0) return be_stuck(world);
    if (world.rank() == 1) g->receive(stream, View<float>(x, {16}), 0, 5);
    else g->barrier();
}

void a_message_of_another_size_is_refused(World& world) {
    const auto g = world.everyone("pp");
    const Worker stream(1);
    const Numbers<float> large(100000);
    Numbers<float> x(50000);
    if (world.rank() == 0) {
        Ticket ticket = g->send(stream, View<const float>(large.data(), {100000}), 1, 5);
        g->wait(stream, ticket);
    }
    if (world.rank() == 1) g->receive(stream, View<float>(x.data(), {50000}), 0, 5);
    g->barrier();
}

void a_receiver_hears_that_the_sender_left(World& world) {
    const auto g = world.everyone("pp");
    const Worker stream(1);
    float x = 0;
    if (world.rank() == 0) {
        g->abort("disk is full");
        fail("disk is full");
    }
    g->receive(stream, View<float>(&x, {1}), world.rank() - 1, 1);
}

void a_rank_leaves_at_some_collective(World& world) {
    const auto all = world.everyone("world"), other = world.everyone("other");
    for (int i = 0; i < 1000; ++i) {
        if (world.rank() == 2 && i == 37) fail("random death");
        sum(i % 3 ? *all : *other, 1 + i * 7 % 3000);
    }
}

Texts says_missing_2(int rank, int) {
    return rank == 2 ? Texts{}
                     : Texts{"dp_cp group of ranks 0,1,2,3", "all_reduce of 1000 float32", "#2", "rank 2", "within 1 s"};
}
Texts says_missing_3(int rank, int) {
    return rank == 3 ? Texts{} : Texts{"tp group of ranks 0,1,2,3", "making it", "rank 3"};
}
Texts says_rank_1_left(int rank, int) {
    return rank == 1 ? Texts{"the chip is broken"}
                     : Texts{"tp group", "all_reduce", "#2", "rank 1 left: the chip is broken"};
}
Texts says_counts(int, int) {
    return {"ranks disagree in collective #2", "ranks 0,2,3 brought all_reduce of 1000 float32",
            "rank 1 brought all_reduce of 1001"};
}
Texts says_collectives(int, int) {
    return {"collective #1", "ranks 0,1,2 brought barrier", "rank 3 brought all_reduce of 5"};
}
Texts says_roots(int, int) {
    return {"rank 0 brought broadcast of 1 float64 from the group's rank 0", "rank 1; every"};
}
Texts says_types(int, int) {
    return {"rank 0 brought all_reduce of 1 int64", "ranks 1,2,3 brought all_reduce of 1 float64"};
}
Texts says_no_message(int rank, int) {
    if (rank == 0) return {};
    return rank == 1 ? Texts{"pp group", "receive of 64 bytes from rank 0 on channel 5", "rank 0"}
                     : Texts{"barrier", "#1"};
}
Texts says_sizes(int rank, int) {
    if (rank == 1) return {"receive of 200000 bytes from rank 0 on channel 5", "400000"};
    return rank == 0 ? Texts{"pp group"} : Texts{"barrier", "rank"};
}
Texts says_sender_left(int rank, int) {
    return rank == 0 ? Texts{"disk is full"} : Texts{"receive of 4 bytes", "rank 0 left: disk is full"};
}
Texts says_random_death(int rank, int) {
    return rank == 2 ? Texts{"random death"} : Texts{"all_reduce", "#", "rank 2 left: random death"};
}

}  // namespace

const std::vector<FailureCase>& failure_cases() {
    constexpr double quick = 1, never = 60;
#define KEEL_CASE(name) #name, quick, name
#define KEEL_PATIENT(name) #name, never, name
    static const std::vector<FailureCase> all = {
        {KEEL_CASE(a_rank_that_does_not_come_is_named_with_the_collective), says_missing_2, "did not come within 1 s",
         ExitCode::peer},
        {KEEL_CASE(a_rank_that_does_not_join_a_group_is_named), says_missing_3, "did not come within 1 s",
         ExitCode::peer},
        {KEEL_PATIENT(a_rank_that_throws_is_named_with_its_reason), says_rank_1_left, "rank 1: the chip is broken",
         ExitCode::failure},
        {KEEL_PATIENT(different_counts_are_refused), says_counts, "ranks disagree", ExitCode::failure},
        {KEEL_PATIENT(different_collectives_are_refused), says_collectives, "ranks disagree", ExitCode::failure},
        {KEEL_PATIENT(different_roots_are_refused), says_roots, "ranks disagree", ExitCode::failure},
        {KEEL_PATIENT(different_types_are_refused), says_types, "ranks disagree", ExitCode::failure},
        {KEEL_CASE(a_message_that_is_not_sent_is_named), says_no_message, "did not come within 1 s", ExitCode::peer},
        {KEEL_PATIENT(a_message_of_another_size_is_refused), says_sizes, "same size", ExitCode::failure},
        {KEEL_PATIENT(a_receiver_hears_that_the_sender_left), says_sender_left, "rank 0: disk is full",
         ExitCode::failure},
        {KEEL_PATIENT(a_rank_leaves_at_some_collective), says_random_death, "rank 2: random death", ExitCode::failure},
    };
#undef KEEL_CASE
#undef KEEL_PATIENT
    return all;
}

}  // namespace keel::comm_suite
