// engine/parallel/pipeline.h: pipeline schedules as tables: what each rank does, in which order.
//
// A model cut over `stages` ranks in `chunks` pieces per rank has stages * chunks virtual stages; virtual stage
// chunk * stages + rank is chunk `chunk` of rank `rank`, so activations run 0 -> 1 -> ... -> stages-1 and, with more
// chunks, back to rank 0. A table is a list of forwards and backwards of (micro-batch, chunk). It is made by a pure
// function of the shape, so every rank knows every other rank's; the executor, the memory planner, the pictures and the
// simulator (pipeline_run.h) all read this one.
//
//     none         one stage: F0 B0 F1 B1 ...
//     gpipe        every forward, then every backward, oldest first
//     one_f_one_b  warm up with stages-rank-1 forwards, then one forward and one backward in turn, then the rest
//     interleaved  the same over chunks: groups of `group` micro-batches go through chunk 0, then chunk 1, ...
// Huang et al. 2019, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2104.04473.
//
// Backwards of one chunk happen in micro-batch order in every schedule: the order of summation into gradients, and with
// it every bit of the result, does not depend on the schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace keel {

enum class PipelineSchedule : std::uint8_t { none, gpipe, one_f_one_b, interleaved };

// The words of --parallel.schedule: "gpipe", "1f1b", "interleaved", and "auto", which is none for one stage,
// interleaved for several chunks, and 1f1b otherwise. An unknown word fails with the nearest one.
PipelineSchedule pipeline_schedule(const std::string& word, int stages, int chunks);
const char* name(PipelineSchedule schedule);

struct PipelineShape {
    int stages = 1;         // --parallel.pp
    int chunks = 1;         // --parallel.chunks, per rank
    int micro_batches = 1;  // per step and replica
    int group = 0;          // --parallel.micro_batch_group of the interleaved schedule; 0 means stages

    int group_size() const { return group > 0 ? group : stages; }
    int virtual_stages() const { return stages * chunks; }
};

struct PipelineAction {
    enum Kind : std::uint8_t { forward, backward };
    Kind kind;
    int micro_batch, chunk;
    bool operator==(const PipelineAction&) const = default;
};
using PipelineTable = std::vector<PipelineAction>;

// Refuses what the schedule cannot do, by messages that name the flags.
void check_pipeline(PipelineSchedule schedule, const PipelineShape& shape);

// What `rank` of 0..stages-1 does in a step. Every (micro-batch, chunk) is forwarded once and sent back once.
PipelineTable pipeline_table(PipelineSchedule schedule, const PipelineShape& shape, int rank);
// Forwards only, in the order in which the first stage runs them.
PipelineTable forward_table(PipelineSchedule schedule, const PipelineShape& shape);

// "F3.1 B0.0": micro-batch, then chunk if there is more than one. For messages, tests and pictures.
std::string to_string(const PipelineAction& action, int chunks);
std::string to_string(const PipelineTable& table, int chunks);

// --- Who sends to whom

struct StagePlace {
    int rank, chunk;
    bool operator==(const StagePlace&) const = default;
};
inline int virtual_stage(const PipelineShape& shape, StagePlace at) { return at.chunk * shape.stages + at.rank; }
inline StagePlace stage_place(const PipelineShape& shape, int virtual_stage) {
    return {virtual_stage % shape.stages, virtual_stage / shape.stages};
}
// Where activations come from and gradients go to; none for the first virtual stage.
std::optional<StagePlace> previous_stage(const PipelineShape& shape, StagePlace at);
// Where activations go to and gradients come from; none for the last virtual stage.
std::optional<StagePlace> next_stage(const PipelineShape& shape, StagePlace at);

// Messages between two ranks may pass each other (two ranks with two chunks send both activations and gradients both
// ways), so each goes by a channel of its kind and receiving chunk. Within a channel they are sent, and wanted, in the order
// of micro-batches, in every schedule.
inline int message_channel(PipelineAction::Kind kind, int receiving_chunk) {
    return 2 * receiving_chunk + (kind == PipelineAction::backward ? 1 : 0);
}

// --- What lives at the same time

// The most (micro-batch, chunk) pairs that wait for their backward at once: sets of activations that a rank keeps.
int peak_in_flight(const PipelineTable& table);

// Which of a rank's sets of activations each (micro-batch, chunk) uses, from its forward to its backward. The smallest
// free one is taken, so there are exactly peak_in_flight of them.
struct PipelineSlots {
    int slots = 0, micro_batches = 0;
    std::vector<int> slot;  // [chunk * micro_batches + micro_batch]
    int of(const PipelineAction& a) const {
        return slot[static_cast<std::size_t>(a.chunk * micro_batches + a.micro_batch)];
    }
};
PipelineSlots pipeline_slots(const PipelineTable& table, const PipelineShape& shape);

}  // namespace keel
