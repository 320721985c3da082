// Pipeline schedules: the order of every rank's actions, what lives at once, who sends to whom, and that nothing can
// block. Orders, makespans and peaks were worked out by an independent script.
#include "engine/parallel/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "engine/parallel/pipeline_run.h"
#include "kernels/base/error.h"

using namespace keel;

namespace {

constexpr auto one_f_one_b = PipelineSchedule::one_f_one_b;
constexpr auto interleaved = PipelineSchedule::interleaved;
constexpr auto gpipe = PipelineSchedule::gpipe;

std::string order(PipelineSchedule schedule, const PipelineShape& shape, int rank) {
    return to_string(pipeline_table(schedule, shape, rank), shape.chunks);
}

std::vector<int> peaks(PipelineSchedule schedule, const PipelineShape& shape) {
    std::vector<int> out;
    for (int r = 0; r < shape.stages; ++r) out.push_back(peak_in_flight(pipeline_table(schedule, shape, r)));
    return out;
}

std::string refusal(const std::function<void()>& statement) {
    try {
        statement();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::usage);
        return error.what();
    }
    return "accepted";
}

// Every (schedule, shape) of up to 8 stages, 4 chunks and 32 micro-batches that is not refused.
void for_every_shape(const std::function<void(PipelineSchedule, const PipelineShape&)>& body) {
    for (int stages = 1; stages <= 8; ++stages)
        for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
            if (stages == 1) body(PipelineSchedule::none, {stages, 1, micro_batches});
            body(one_f_one_b, {stages, 1, micro_batches});
            body(gpipe, {stages, 1, micro_batches});
            if (stages == 1) continue;
            for (int chunks = 2; chunks <= 4; ++chunks)
                for (int group = stages; group <= micro_batches; ++group)
                    if (const int rest = micro_batches % group; rest == 0 || rest >= stages)
                        body(interleaved, {stages, chunks, micro_batches, group});
        }
}

}  // namespace

TEST(PipelineTable, OneForwardOneBackwardOnFourStages) {
    const PipelineShape shape{.stages = 4, .micro_batches = 8};
    EXPECT_EQ(order(one_f_one_b, shape, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
    EXPECT_EQ(order(one_f_one_b, shape, 1), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
    EXPECT_EQ(order(one_f_one_b, shape, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
    EXPECT_EQ(order(one_f_one_b, shape, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
    EXPECT_EQ(peaks(one_f_one_b, shape), (std::vector{4, 3, 2, 1}));
    const PipelineRun run = run_pipeline(one_f_one_b, shape, {});  // forward 1, backward 2, sends free
    EXPECT_EQ(run.makespan, 33);
    EXPECT_EQ(run.busy, (std::vector{24.0, 24.0, 24.0, 24.0}));
    EXPECT_EQ(run.bubble_fraction(), 0.375);
    EXPECT_DOUBLE_EQ(run.idle_share(), 9.0 / 33);
}

TEST(PipelineTable, FewerMicroBatchesThanStages) {
    const PipelineShape shape{.stages = 4, .micro_batches = 2};
    EXPECT_EQ(order(one_f_one_b, shape, 0), "F0 F1 B0 B1");
    EXPECT_EQ(order(one_f_one_b, shape, 1), "F0 F1 B0 B1");
    EXPECT_EQ(order(one_f_one_b, shape, 2), "F0 F1 B0 B1");
    EXPECT_EQ(order(one_f_one_b, shape, 3), "F0 B0 F1 B1");
}

TEST(PipelineTable, OneStageTakesTurnsAndGpipeDoesNot) {
    EXPECT_EQ(order(PipelineSchedule::none, {.micro_batches = 3}, 0), "F0 B0 F1 B1 F2 B2");
    EXPECT_EQ(order(gpipe, {.stages = 2, .micro_batches = 3}, 0), "F0 F1 F2 B0 B1 B2");
    EXPECT_EQ(order(gpipe, {.stages = 2, .micro_batches = 3}, 1), "F0 F1 F2 B0 B1 B2");
    EXPECT_EQ(peaks(gpipe, {.stages = 2, .micro_batches = 3}), (std::vector{3, 3}));
}

TEST(PipelineTable, TwoStagesOfTwoChunks) {
    const PipelineShape shape{.stages = 2, .chunks = 2, .micro_batches = 4};
    EXPECT_EQ(order(interleaved, shape, 0),
              "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
    EXPECT_EQ(order(interleaved, shape, 1),
              "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
    EXPECT_EQ(peaks(interleaved, shape), (std::vector{5, 3}));
    const PipelineRun run = run_pipeline(interleaved, shape, {});
    EXPECT_EQ(run.makespan, 27);
    EXPECT_EQ(run.busy, (std::vector{24.0, 24.0}));
    EXPECT_EQ(run.bubble_fraction(), 0.125);
}

TEST(PipelineTable, FourStagesOfTwoChunks) {
    const PipelineShape shape{.stages = 4, .chunks = 2, .micro_batches = 8};
    EXPECT_EQ(
        order(interleaved, shape, 0),
        "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0.0 F7.1 B1.0 "
        "B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
    EXPECT_EQ(
        order(interleaved, shape, 3),
        "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 F6.0 B2.0 F7.0 B3.0 F4.1 B4.1 "
        "F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0");
    for (int rank = 0; rank < 4;
         ++rank) {  // forwards before the first backward: 10, 8, 6, 4, and one more of the steady part
        const PipelineTable table = pipeline_table(interleaved, shape, rank);
        const auto first = std::ranges::find(table, PipelineAction::backward, &PipelineAction::kind);
        EXPECT_EQ(first - table.begin(), 10 - 2 * rank + 1);
    }
    EXPECT_EQ(run_pipeline(interleaved, shape, {}).bubble_fraction(), 9.0 / 48);
    EXPECT_EQ(run_pipeline(interleaved, {.stages = 4, .chunks = 4, .micro_batches = 8}, {}).bubble_fraction(), 0.09375);
}

TEST(PipelineTable, TheLastGroupMayBeSmaller) {
    const PipelineTable table = forward_table(interleaved, {.stages = 2, .chunks = 2, .micro_batches = 5, .group = 3});
    EXPECT_EQ(to_string(table, 2), "F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 F3.0 F4.0 F3.1 F4.1");
}

TEST(PipelineTable, HasEveryActionOnceBackwardsInOrderAndNeverBlocks) {
    int shapes = 0, most = 0;
    for_every_shape([&](PipelineSchedule schedule, const PipelineShape& shape) {
        ++shapes;
        for (int rank = 0; rank < shape.stages; ++rank) {
            const PipelineTable table = pipeline_table(schedule, shape, rank);
            const auto pairs = static_cast<std::size_t>(shape.chunks * shape.micro_batches);
            ASSERT_EQ(table.size(), 2 * pairs);
            // Both ways a chunk meets every micro-batch once, in order: one order of sums, and of messages in a channel.
            std::vector<int> next(2 * static_cast<std::size_t>(shape.chunks), 0);
            for (const PipelineAction& a : table)
                ASSERT_EQ(next[static_cast<std::size_t>(message_channel(a.kind, a.chunk))]++, a.micro_batch)
                    << name(schedule) << " " << to_string(a, shape.chunks);
        }
        // As the executor runs it, waits for its buffers of gradients included.
        ASSERT_NO_THROW(run_pipeline(schedule, shape, {}));
        most = std::max(most, gradient_buffers(schedule, shape));
    });
    EXPECT_GT(most, 1);
    EXPECT_GT(shapes, 5000);
}

TEST(PipelineTable, TooFewBuffersOfGradientsBlockAndAreNotTaken) {
    const PipelineShape shape{.stages = 2, .chunks = 2, .micro_batches = 5, .group = 5};
    const int buffers = gradient_buffers(interleaved, shape);
    std::vector<PipelineTable> tables;
    for (int rank = 0; rank < 2; ++rank) tables.push_back(pipeline_table(interleaved, shape, rank));
    EXPECT_THROW(run_tables(tables, shape, {}, 1), Error);
    EXPECT_EQ(run_tables(tables, shape, {}, buffers).makespan, run_tables(tables, shape, {}).makespan);
    EXPECT_EQ(gradient_buffers(one_f_one_b, {.stages = 1, .micro_batches = 4}), 1);
}

TEST(PipelineTable, TheBubbleIsTheTextbooks) {
    for_every_shape([](PipelineSchedule schedule, const PipelineShape& shape) {
        if (shape.group != 0 && shape.group != shape.stages) return;
        if (shape.micro_batches % shape.stages != 0) return;
        const double work = 3.0 * shape.chunks * shape.micro_batches;  // whole numbers: the comparison is exact
        ASSERT_EQ(run_pipeline(schedule, shape, {}).makespan, work + 3 * (shape.stages - 1))
            << name(schedule) << " " << shape.stages << " " << shape.chunks << " " << shape.micro_batches;
    });
}

TEST(PipelineTable, ATableThatBlocksIsFound) {
    const PipelineShape shape{.stages = 2, .micro_batches = 2};
    std::vector<PipelineTable> tables = {pipeline_table(one_f_one_b, shape, 0), pipeline_table(one_f_one_b, shape, 1)};
    std::swap(tables[0][0], tables[0][2]);  // B0 before anything was forwarded
    try {
        run_tables(tables, shape, {});
        FAIL() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(
            std::string(error.what()),
            "pipeline schedule: rank 0 would wait for ever before its action 0, B0; this is a defect of the table");
    }
    std::swap(tables[0][0], tables[0][2]);
    std::swap(tables[1][0], tables[1][1]);  // the last stage needs nobody's gradient, but its own forward
    EXPECT_THROW(run_tables(tables, shape, {}), Error);
}

TEST(PipelineTable, UnequalStagesAndSlowSendsLengthenTheStep) {
    const PipelineShape shape{.stages = 2, .micro_batches = 2};
    // Rank 1: F0 from 1 to 4, B0 to 10, F1 to 13, B1 to 19; rank 0: F0, F1, then B0 from 10 to 12, B1 from 19 to 21.
    EXPECT_EQ(run_pipeline(one_f_one_b, shape, {.forward = {1, 3}, .backward = {2, 6}}).makespan, 21);
    // Each send delays by 0.5: F0 from 1.5, ..., B1 ends at 19.5 and its gradient is there at 20.
    EXPECT_EQ(run_pipeline(one_f_one_b, shape, {.forward = {1, 3}, .backward = {2, 6}, .send = 0.5}).makespan, 22);
}

TEST(PipelineStages, PassActivationsRoundTheRanksAndGradientsBack) {
    const PipelineShape shape{.stages = 4, .chunks = 2, .micro_batches = 4};
    EXPECT_EQ(previous_stage(shape, {0, 0}), std::nullopt);
    EXPECT_EQ(next_stage(shape, {0, 0}), (StagePlace{1, 0}));
    EXPECT_EQ(next_stage(shape, {3, 0}), (StagePlace{0, 1}));
    EXPECT_EQ(previous_stage(shape, {0, 1}), (StagePlace{3, 0}));
    EXPECT_EQ(next_stage(shape, {3, 1}), std::nullopt);
}

// What a rank sends (S) and receives (R), activations (f) and gradients (b), around its actions.
std::string messages(PipelineSchedule schedule, const PipelineShape& shape, int rank) {
    std::string out;
    const auto say = [&](const std::string& word) { out += (out.empty() ? "" : " ") + word; };
    for (const PipelineAction& a : pipeline_table(schedule, shape, rank)) {
        const bool forward = a.kind == PipelineAction::forward;
        const StagePlace at{rank, a.chunk};
        const std::string what = concat(forward ? "f" : "b", a.micro_batch);
        if (forward ? previous_stage(shape, at) : next_stage(shape, at)) say("R" + what);
        say(to_string(a, shape.chunks));
        if (forward ? next_stage(shape, at) : previous_stage(shape, at)) say("S" + what);
    }
    return out;
}

TEST(PipelineStages, SendAndReceiveInThisOrderOnTwoStages) {
    const PipelineShape shape{.stages = 2, .micro_batches = 3};
    EXPECT_EQ(messages(one_f_one_b, shape, 0), "F0 Sf0 F1 Sf1 Rb0 B0 F2 Sf2 Rb1 B1 Rb2 B2");
    EXPECT_EQ(messages(one_f_one_b, shape, 1), "Rf0 F0 B0 Sb0 Rf1 F1 B1 Sb1 Rf2 F2 B2 Sb2");
}

TEST(PipelineSlots, AreAsManyAsLiveAtOnceAndNeverSharedInTime) {
    for_every_shape([](PipelineSchedule schedule, const PipelineShape& shape) {
        for (int rank = 0; rank < shape.stages; ++rank) {
            const PipelineTable table = pipeline_table(schedule, shape, rank);
            const PipelineSlots slots = pipeline_slots(table, shape);
            ASSERT_EQ(slots.slots, peak_in_flight(table));
            std::vector<int> held(static_cast<std::size_t>(slots.slots), 0);
            for (const PipelineAction& a : table) {
                int& h = held[static_cast<std::size_t>(slots.of(a))];
                h += a.kind == PipelineAction::forward ? 1 : -1;
                ASSERT_TRUE(h == 0 || h == 1);
            }
        }
    });
    const PipelineShape shape{.stages = 2, .chunks = 2, .micro_batches = 4};
    // Rank 0: F0.0 F1.0 F0.1 F1.1 F2.0 take 0 to 4, B0.1 frees 2 for F3.0, B1.1 frees 3 for F2.1, B0.0 frees 0 for
    // F3.1.
    EXPECT_EQ(pipeline_slots(pipeline_table(interleaved, shape, 0), shape).slot, (std::vector{0, 1, 4, 2, 2, 3, 3, 0}));
}

TEST(PipelineCheck, RefusesByNamingTheFlags) {
    const auto refused = [](PipelineSchedule schedule, const PipelineShape& shape) {
        return refusal([&] { pipeline_table(schedule, shape, 0); });
    };
    EXPECT_EQ(
        refused(interleaved, {.stages = 4, .chunks = 2, .micro_batches = 6}),
        "6 micro-batches per step and replica leave a last group of 2 after groups of 4 (--parallel.pp), fewer than "
        "--parallel.pp 4; make them a multiple of the group by --train.global_batch or --train.micro_batch, or choose "
        "another --parallel.micro_batch_group");
    EXPECT_EQ(refused(interleaved, {.stages = 4, .chunks = 2, .micro_batches = 8, .group = 3}),
              "--parallel.micro_batch_group 3 is smaller than --parallel.pp 4: the first micro-batch would not be back "
              "at rank 0 "
              "in time; give at least 4");
    EXPECT_EQ(refused(interleaved, {.stages = 4, .chunks = 2, .micro_batches = 2}),
              "the interleaved schedule's group of 4 micro-batches (--parallel.pp) is more than the 2 micro-batches of "
              "a step and "
              "replica; raise --train.global_batch, lower --train.micro_batch, or choose --parallel.schedule 1f1b with "
              "--parallel.chunks 1");
    EXPECT_EQ(
        refused(interleaved, {.stages = 4, .chunks = 2, .micro_batches = 8, .group = 9}),
        "--parallel.micro_batch_group 9 is more than the 8 micro-batches of a step and replica; raise "
        "--train.global_batch, lower --train.micro_batch, or choose --parallel.schedule 1f1b with --parallel.chunks 1");
    EXPECT_EQ(
        refused(interleaved, {.stages = 1, .chunks = 2, .micro_batches = 8}),
        "--parallel.chunks 2 needs --parallel.pp of at least 2: chunks of one rank have nobody to take turns with");
    EXPECT_EQ(refused(interleaved, {.stages = 1, .micro_batches = 8}),
              "--parallel.schedule interleaved needs --parallel.pp of at least 2, but it is 1; leave the schedule out");
    EXPECT_EQ(
        refused(interleaved, {.stages = 2, .micro_batches = 8}),
        "--parallel.schedule interleaved needs --parallel.chunks of at least 2; with one chunk per rank choose 1f1b");
    EXPECT_EQ(refused(one_f_one_b, {.stages = 2, .chunks = 2, .micro_batches = 8}),
              "--parallel.chunks 2 needs --parallel.schedule interleaved; 1f1b has one chunk per rank");
    EXPECT_EQ(refused(gpipe, {.stages = 2, .micro_batches = 8, .group = 2}),
              "--parallel.micro_batch_group 2 has no effect with --parallel.schedule gpipe; it belongs to interleaved");
    EXPECT_EQ(refused(one_f_one_b, {.stages = 0, .micro_batches = 8}), "--parallel.pp is 0; it must be at least 1");
    EXPECT_EQ(refused(one_f_one_b, {.stages = 2, .chunks = 0, .micro_batches = 8}),
              "--parallel.chunks is 0; it must be at least 1");
    EXPECT_EQ(refused(one_f_one_b, {.stages = 2, .micro_batches = 0}),
              "a step has 0 micro-batches per replica; --train.global_batch must be at least --train.micro_batch times "
              "--parallel.dp");
    EXPECT_EQ(refused(interleaved, {.stages = 2, .chunks = 2, .micro_batches = 8, .group = -1}),
              "--parallel.micro_batch_group is -1; give a number of micro-batches, or 0 for --parallel.pp");
    EXPECT_EQ(refused(one_f_one_b, {.stages = 2, .micro_batches = 1 << 21}),
              "--parallel.pp 2, --parallel.chunks 1 and 2097152 micro-batches are more than a schedule of 1048576 "
              "entries; raise "
              "--train.micro_batch");
    EXPECT_EQ(refused(interleaved, {.stages = 2, .chunks = 2, .micro_batches = 2}),
              "accepted");  // tags keep messages apart
}

TEST(PipelineCheck, KnowsTheWordsOfTheFlag) {
    EXPECT_EQ(pipeline_schedule("auto", 1, 1), PipelineSchedule::none);
    EXPECT_EQ(pipeline_schedule("auto", 4, 1), one_f_one_b);
    EXPECT_EQ(pipeline_schedule("auto", 4, 2), interleaved);
    EXPECT_EQ(pipeline_schedule("gpipe", 4, 1), gpipe);
    EXPECT_EQ(refusal([] { pipeline_schedule("1b1f", 4, 1); }),
              "--parallel.schedule is \"1b1f\"; choices are auto, gpipe, 1f1b, interleaved");
    EXPECT_EQ(
        refusal([] { pipeline_schedule("interleave", 4, 1); }),
        "--parallel.schedule is \"interleave\"; did you mean interleaved? Choices are auto, gpipe, 1f1b, interleaved");
}
