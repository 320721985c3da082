// A collective allocates nothing on any rank once its group is made, whatever it is and however long.
#include "tests/count_allocations.h"

#include <gtest/gtest.h>

#include <vector>

#include "comm/threads.h"

namespace keel {
namespace {

TEST(Allocation, CollectivesAndMessagesOfThreadsAllocateNothing) {
    run_threads(4, {.deadline_s = 30}, [](World& world) {
        Stream stream(2, 64, 64);
        const auto group = world.everyone();
        constexpr std::int64_t part = 40000;
        std::vector<float> x(4 * part), y(4 * part);
        std::vector<bf16> h(part, bf16(1.0f));
        double pair[] = {1, 2};
        std::int64_t number = 1;
        const View<float> all(x.data(), {4 * part}), other(y.data(), {4 * part}),
            shard = all.rows(group->rank() * part, part);
        const int next = (group->rank() + 1) % 4, last = (group->rank() + 3) % 4;
        const auto everything = [&] {
            group->all_reduce(stream, all);
            group->all_reduce(stream, View<bf16>(h.data(), {part}));
            group->all_reduce(stream, View<double>(pair, {2}));
            group->all_reduce_max(stream, View<std::int64_t>(&number, {1}));
            group->reduce_scatter(stream, shard, all);
            group->all_gather(stream, all, shard);
            group->broadcast(stream, other, 2);
            group->all_to_all(stream, other, all);
            Ticket one = group->send(stream, all, next, 0), two = group->send(stream, shard, next, 1);
            group->receive(stream, other.rows(0, part), last, 1);
            group->receive(stream, other, last, 0);
            group->wait(stream, one);
            group->wait(stream, two);
            EXPECT_TRUE(group->all(group->any(true)));
            group->barrier();
        };
        everything();  // the records of two messages
        group->barrier();
        const long before = allocations();
        group->barrier();  // nobody goes on before all have read the count
        for (int i = 0; i < 20; ++i) everything();
        const long after = allocations();
        group->barrier();
        EXPECT_EQ(after - before, 0);
    });
}

}  // namespace
}  // namespace keel
