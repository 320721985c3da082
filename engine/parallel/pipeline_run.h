// engine/parallel/pipeline_run.h: a pipeline schedule played on paper: when each action of each rank begins and ends.
//
// Ranks work through their tables (pipeline.h) in order. A send is asynchronous and takes `send` until the receiver may
// use it; a receive waits. What is played is exactly what the executor runs, so a table that could block for ever is
// found here, for every shape, without running a model. The pictures and the cluster simulator are made from the
// result.
#pragma once

#include <vector>

#include "engine/parallel/pipeline.h"

namespace keel {

// In any one unit of time. One entry per virtual stage, or a single entry that holds for all.
struct PipelineCosts {
    std::vector<double> forward = {1}, backward = {2};
    double send = 0;  // from the end of an action until its output has arrived at another rank
};

struct TimedAction {
    PipelineAction action;
    double begin, end;
};

struct PipelineRun {
    PipelineSchedule schedule = PipelineSchedule::none;
    PipelineShape shape{};
    std::vector<std::vector<TimedAction>> ranks;  // [stages], in the order of the tables
    double makespan = 0;                          // from the first begin to the last end
    std::vector<double> busy;                     // [stages]

    // Share of the ranks' time in which they wait. With equal stages and free sends it is the textbook's
    // (stages-1) / (chunks * micro_batches), seen from the makespan: bubble = x / (1 + x).
    double idle_share() const;
    // Makespan over the busy time of the busiest rank, minus 1: the textbook's bubble fraction itself.
    double bubble_fraction() const;
};

// In how many buffers a rank's backwards work, each in the next one: the gradient comes in there, and is sent from
// there, so it is free again once the stage before has it. The fewest that neither block the schedule nor make it
// longer.
int gradient_buffers(PipelineSchedule schedule, const PipelineShape& shape);

// With these buffers. Fails, naming the rank and the action it waits for, if the tables block.
PipelineRun run_pipeline(PipelineSchedule schedule, const PipelineShape& shape, const PipelineCosts& costs);
// The same for any tables, [stages] of them, and any number of buffers; 0 is one for every backward.
PipelineRun run_tables(const std::vector<PipelineTable>& tables, const PipelineShape& shape,
                       const PipelineCosts& costs, int buffers = 0);

}  // namespace keel
