#include "engine/parallel/pipeline.h"

#include <algorithm>

#include "engine/config_names.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr auto forward = PipelineAction::forward;
constexpr auto backward = PipelineAction::backward;

// The order in which (micro-batch, chunk) pairs enter a rank, as forwards. The same on every rank.
PipelineTable entry_order(const PipelineShape& s) {
    PipelineTable order;
    for (int first = 0; first < s.micro_batches; first += s.group_size())
        for (int chunk = 0; chunk < s.chunks; ++chunk)
            for (int i = first; i < std::min(first + s.group_size(), s.micro_batches); ++i)
                order.push_back({forward, i, chunk});
    return order;
}

// Forwards that a rank runs before its first backward.
int warm_up(PipelineSchedule schedule, const PipelineShape& s, int rank) {
    const int all = s.micro_batches * s.chunks, below = s.stages - rank - 1;
    switch (schedule) {
        case PipelineSchedule::none: return 0;
        case PipelineSchedule::gpipe: return all;
        case PipelineSchedule::one_f_one_b: return std::min(below, all);
        // Two steps per rank below, for a gradient comes back only after both directions; and every other chunk of the
        // first group goes by before the last chunk's first backward can start.
        case PipelineSchedule::interleaved: return std::min(2 * below + (s.chunks - 1) * s.group_size(), all);
    }
    fail("pipeline schedule ", static_cast<int>(schedule), " is not one of the four");
}

std::string shape_text(const PipelineShape& s) {
    return concat("--parallel.pp ", s.stages, ", --parallel.chunks ", s.chunks, " and ", s.micro_batches,
                  " micro-batches");
}

void check_interleaved(const PipelineShape& s) {
    const int group = s.group_size();
    if (s.stages == 1)
        fail_usage(
            "--parallel.schedule interleaved needs --parallel.pp of at least 2, but it is 1; leave the schedule out");
    if (s.chunks == 1)
        fail_usage(
            "--parallel.schedule interleaved needs --parallel.chunks of at least 2; with one chunk per rank choose "
            "1f1b");
    if (group < s.stages)
        fail_usage("--parallel.micro_batch_group ", group, " is smaller than --parallel.pp ", s.stages,
                   ": the first micro-batch would not be back at rank 0 in time; give at least ", s.stages);
    if (group > s.micro_batches)
        fail_usage(
            s.group > 0 ? concat("--parallel.micro_batch_group ", group)
                        : concat("the interleaved schedule's group of ", group, " micro-batches (--parallel.pp)"),
            " is more than the ", s.micro_batches, " micro-batches of a step and replica; raise --train.global_batch, ",
            "lower --train.micro_batch, or choose --parallel.schedule 1f1b with --parallel.chunks 1");
    if (const int rest = s.micro_batches % group; rest > 0 && rest < s.stages)
        fail_usage(
            concat(s.micro_batches), " micro-batches per step and replica leave a last group of ", rest,
            " after groups of ", group, s.group > 0 ? " (--parallel.micro_batch_group)" : " (--parallel.pp)",
            ", fewer than --parallel.pp ", s.stages,
            "; make them a multiple of the group by --train.global_batch or --train.micro_batch, or choose another ",
            "--parallel.micro_batch_group");
}

}  // namespace

PipelineSchedule pipeline_schedule(const std::string& word, int stages, int chunks) {
    if (word == "auto" && chunks > 1) return PipelineSchedule::interleaved;
    if (word == "auto") return stages > 1 ? PipelineSchedule::one_f_one_b : PipelineSchedule::none;
    for (const auto schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved})
        if (word == name(schedule)) return schedule;
    const std::vector<std::string> words = {"auto", "gpipe", "1f1b", "interleaved"};
    const auto hint = nearest_name(word, words);
    fail_usage("--parallel.schedule is \"", word, "\"",
               hint ? "; did you mean " + *hint + "? Choices are " : "; choices are ", join(words, ", "));
}

const char* name(PipelineSchedule schedule) {
    switch (schedule) {
        case PipelineSchedule::none: return "none";
        case PipelineSchedule::gpipe: return "gpipe";
        case PipelineSchedule::one_f_one_b: return "1f1b";
        case PipelineSchedule::interleaved: return "interleaved";
    }
    return "?";
}

void check_pipeline(PipelineSchedule schedule, const PipelineShape& s) {
    constexpr int most = 1 << 20;  // micro-batches times chunks: actions and tags stay far inside of an int
    if (s.stages < 1) fail_usage("--parallel.pp is ", s.stages, "; it must be at least 1");
    if (s.chunks < 1) fail_usage("--parallel.chunks is ", s.chunks, "; it must be at least 1");
    if (s.group < 0)
        fail_usage("--parallel.micro_batch_group is ", s.group,
                   "; give a number of micro-batches, or 0 for --parallel.pp");
    if (s.micro_batches < 1)
        fail_usage("a step has ", s.micro_batches, " micro-batches per replica; --train.global_batch must be at least ",
                   "--train.micro_batch times --parallel.dp");
    if (s.micro_batches > most / s.chunks || s.stages > most / s.chunks)
        fail_usage(shape_text(s), " are more than a schedule of ", most, " entries; raise --train.micro_batch");
    if (s.stages == 1 && s.chunks > 1)
        fail_usage("--parallel.chunks ", s.chunks,
                   " needs --parallel.pp of at least 2: chunks of one rank have nobody to take turns with");
    if (s.group > 0 && schedule != PipelineSchedule::interleaved)
        fail_usage("--parallel.micro_batch_group ", s.group, " has no effect with --parallel.schedule ", name(schedule),
                   "; it belongs to interleaved");
    if (schedule == PipelineSchedule::interleaved) return check_interleaved(s);
    if (s.chunks > 1)
        fail_usage("--parallel.chunks ", s.chunks, " needs --parallel.schedule interleaved; ", name(schedule),
                   " has one chunk per rank");
    if (schedule == PipelineSchedule::none && s.stages > 1)
        fail("the schedule of one stage was chosen for --parallel.pp ", s.stages,
             "; choose 1f1b, interleaved or gpipe");
}

PipelineTable pipeline_table(PipelineSchedule schedule, const PipelineShape& s, int rank) {
    check_pipeline(schedule, s);
    if (rank < 0 || rank >= s.stages) fail("pipeline rank ", rank, " is not one of the ", s.stages, " stages");
    const PipelineTable order = forward_table(schedule, s);
    const std::size_t all = order.size(), ahead = static_cast<std::size_t>(warm_up(schedule, s, rank));
    PipelineTable table;
    table.reserve(2 * all);
    // Backwards follow the order of entry with the chunks turned round: the last chunk is sent back first.
    const auto send_back = [&](const PipelineAction& a) {
        table.push_back({backward, a.micro_batch, s.chunks - 1 - a.chunk});
    };
    for (std::size_t i = 0; i < ahead; ++i) table.push_back(order[i]);
    for (std::size_t i = ahead; i < all; ++i) {
        table.push_back(order[i]);
        send_back(order[i - ahead]);
    }
    for (std::size_t i = all - ahead; i < all; ++i) send_back(order[i]);
    return table;
}

PipelineTable forward_table(PipelineSchedule schedule, const PipelineShape& s) {
    if (schedule == PipelineSchedule::interleaved) return entry_order(s);
    PipelineTable order;
    for (int i = 0; i < s.micro_batches; ++i) order.push_back({forward, i, 0});
    return order;
}

std::string to_string(const PipelineAction& a, int chunks) {
    std::string out = concat(a.kind == forward ? "F" : "B", a.micro_batch);
    if (chunks > 1) out += concat(".", a.chunk);
    return out;
}

std::string to_string(const PipelineTable& table, int chunks) {
    std::string out;
    for (const PipelineAction& a : table) out += (out.empty() ? "" : " ") + to_string(a, chunks);
    return out;
}

std::optional<StagePlace> previous_stage(const PipelineShape& shape, StagePlace at) {
    const int stage = virtual_stage(shape, at);
    if (stage == 0) return std::nullopt;
    return stage_place(shape, stage - 1);
}

std::optional<StagePlace> next_stage(const PipelineShape& shape, StagePlace at) {
    const int stage = virtual_stage(shape, at);
    if (stage + 1 == shape.virtual_stages()) return std::nullopt;
    return stage_place(shape, stage + 1);
}

int peak_in_flight(const PipelineTable& table) {
    int live = 0, peak = 0;
    for (const PipelineAction& a : table) {
        live += a.kind == forward ? 1 : -1;
        peak = std::max(peak, live);
    }
    return peak;
}

PipelineSlots pipeline_slots(const PipelineTable& table, const PipelineShape& shape) {
    PipelineSlots out;
    out.micro_batches = shape.micro_batches;
    out.slot.assign(static_cast<std::size_t>(shape.chunks * shape.micro_batches), -1);
    std::vector<bool> taken;
    for (const PipelineAction& a : table) {
        if (a.kind == backward) {
            taken[static_cast<std::size_t>(out.of(a))] = false;
            continue;
        }
        const auto free = std::find(taken.begin(), taken.end(), false) - taken.begin();
        if (free == static_cast<std::ptrdiff_t>(taken.size())) taken.push_back(false);
        taken[static_cast<std::size_t>(free)] = true;
        out.slot[static_cast<std::size_t>(a.chunk * shape.micro_batches + a.micro_batch)] = static_cast<int>(free);
    }
    out.slots = static_cast<int>(taken.size());
    return out;
}

}  // namespace keel
