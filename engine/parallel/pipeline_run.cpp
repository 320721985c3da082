#include "engine/parallel/pipeline_run.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr double not_yet = -1;

double cost_of(const std::vector<double>& costs, int virtual_stage) {
    return costs.size() == 1 ? costs[0] : costs[static_cast<std::size_t>(virtual_stage)];
}

// When each (virtual stage, micro-batch) ended, in one direction.
class Ends {
public:
    explicit Ends(const PipelineShape& s)
        : columns_(s.micro_batches), ends_(static_cast<std::size_t>(s.virtual_stages() * s.micro_batches), not_yet) {}
    double& at(int stage, int micro_batch) { return ends_[static_cast<std::size_t>(stage * columns_ + micro_batch)]; }

private:
    int columns_;
    std::vector<double> ends_;
};

struct Player {
    const PipelineShape& shape;
    const PipelineCosts& costs;
    Ends forward, backward, begun;                  // begun: backwards, which is when they have taken the gradient
    int buffers;                                    // 0: one for every backward
    std::vector<std::vector<PipelineAction>> sent;  // of each rank, its backwards so far

    // When the buffer of the next backward of `rank` is free again.
    double free(int rank) {
        const auto& before = sent[static_cast<std::size_t>(rank)];
        if (buffers == 0 || before.size() < static_cast<std::size_t>(buffers)) return 0;
        const PipelineAction& a = before[before.size() - static_cast<std::size_t>(buffers)];
        const int stage = virtual_stage(shape, {rank, a.chunk});
        return stage == 0 ? 0 : begun.at(stage - 1, a.micro_batch);
    }

    // When the inputs of `a` are there, or not_yet.
    double ready(int rank, const PipelineAction& a) {
        const int stage = virtual_stage(shape, {rank, a.chunk});
        if (a.kind == PipelineAction::forward) return stage == 0 ? 0 : arrival(forward.at(stage - 1, a.micro_batch));
        const double own = forward.at(stage, a.micro_batch), buffer = free(rank);
        const double next = stage + 1 == shape.virtual_stages() ? 0 : arrival(backward.at(stage + 1, a.micro_batch));
        return own == not_yet || buffer == not_yet || next == not_yet ? not_yet : std::max(buffer, next);
    }
    double arrival(double end) const { return end == not_yet ? not_yet : end + costs.send; }
};

}  // namespace

double PipelineRun::idle_share() const {
    double worked = 0;
    for (const double b : busy) worked += b;
    return 1 - worked / (makespan * static_cast<double>(ranks.size()));
}

double PipelineRun::bubble_fraction() const { return makespan / *std::max_element(busy.begin(), busy.end()) - 1; }

PipelineRun run_tables(const std::vector<PipelineTable>& tables, const PipelineShape& shape,
                       const PipelineCosts& costs, int buffers) {
    for (const auto* list : {&costs.forward, &costs.backward})
        if (list->size() != 1 && list->size() != static_cast<std::size_t>(shape.virtual_stages()))
            fail("pipeline costs: ", list->size(), " entries for ", shape.virtual_stages(),
                 " virtual stages; give one each, or one for all");
    const std::size_t ranks = tables.size();
    Player player{shape, costs, Ends(shape), Ends(shape), Ends(shape), buffers, {}};
    player.sent.resize(ranks);
    PipelineRun run;
    run.shape = shape;
    run.ranks.resize(ranks);
    run.busy.resize(ranks, 0.0);
    for (std::size_t r = 0; r < ranks; ++r) run.ranks[r].reserve(tables[r].size());

    for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t r = 0; r < ranks; ++r)
            while (run.ranks[r].size() < tables[r].size()) {
                const PipelineAction& a = tables[r][run.ranks[r].size()];
                const double ready = player.ready(static_cast<int>(r), a);
                if (ready == not_yet) break;
                const int stage = virtual_stage(shape, {static_cast<int>(r), a.chunk});
                const bool forward = a.kind == PipelineAction::forward;
                const double begin = std::max(ready, run.ranks[r].empty() ? 0.0 : run.ranks[r].back().end);
                const double cost = cost_of(forward ? costs.forward : costs.backward, stage);
                (forward ? player.forward : player.backward).at(stage, a.micro_batch) = begin + cost;
                if (!forward) player.begun.at(stage, a.micro_batch) = begin, player.sent[r].push_back(a);
                run.ranks[r].push_back({a, begin, begin + cost});
                run.busy[r] += cost;
                run.makespan = std::max(run.makespan, begin + cost);
                moved = true;
            }
    }
    for (std::size_t r = 0; r < ranks; ++r)
        if (run.ranks[r].size() < tables[r].size())
            fail("pipeline schedule: rank ", r, " would wait for ever before its action ", run.ranks[r].size(), ", ",
                 to_string(tables[r][run.ranks[r].size()], shape.chunks), "; this is a defect of the table");
    return run;
}

namespace {

std::vector<PipelineTable> all_tables(PipelineSchedule schedule, const PipelineShape& shape) {
    check_pipeline(schedule, shape);
    std::vector<PipelineTable> tables;
    for (int r = 0; r < shape.stages; ++r) tables.push_back(pipeline_table(schedule, shape, r));
    return tables;
}

// Ranks do the same whenever they come to it, so whether a number of buffers blocks does not depend on times.
int fewest_buffers(const std::vector<PipelineTable>& tables, const PipelineShape& shape) {
    const double best = run_tables(tables, shape, {}).makespan;
    for (int buffers = 1;; ++buffers) {
        try {
            if (run_tables(tables, shape, {}, buffers).makespan <= best) return buffers;
        } catch (const Error&) {  // it blocks; with a buffer for every backward it does not
        }
    }
}

}  // namespace

int gradient_buffers(PipelineSchedule schedule, const PipelineShape& shape) {
    return shape.stages == 1 ? 1 : fewest_buffers(all_tables(schedule, shape), shape);
}

PipelineRun run_pipeline(PipelineSchedule schedule, const PipelineShape& shape, const PipelineCosts& costs) {
    const std::vector<PipelineTable> tables = all_tables(schedule, shape);
    PipelineRun run = run_tables(tables, shape, costs, shape.stages == 1 ? 1 : fewest_buffers(tables, shape));
    run.schedule = schedule;
    return run;
}

}  // namespace keel
