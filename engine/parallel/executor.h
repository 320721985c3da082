// engine/parallel/executor.h: runs a step's schedule: which micro-batch goes forward or backward through which chunk, and what
// passes between stages.
//
// The table is made by a pure function (pipeline.h) and executed here as it is. A send returns at once. What forward sent lies in
// its slot until the next stage has it, and that is long before the slot is used again; what backward sent lies in one of a few
// buffers, as many as the schedule needs not to wait for one (gradient_buffers, pipeline_run.h, where it is played).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "engine/config.h"
#include "engine/model/model.h"
#include "engine/observe/spans.h"
#include "engine/parallel/pipeline.h"
#include "engine/parallel/ranks.h"

namespace keel {

class Executor {
public:
    // All must outlive it. Tables for every size of step that `config` will come to are made here, so that steps allocate
    // nothing.
    Executor(const Config& config, Stream& stream, const Ranks& ranks, Model& model);

    // Micro-batch i of this replica; the Batch is used before the next is asked for.
    using Source = std::function<const Batch&(std::int64_t i)>;
    // Asked between two micro-batches of a single stage; true abandons the step.
    using Stop = std::function<bool()>;

    // Forward and backward of `micro_batches`; gradients are final afterwards, but not reduced. False if it was abandoned.
    bool train(std::int64_t micro_batches, const Source& source, const Stop& stop);
    void record(Spans* spans) { spans_ = spans; }  // where actions and waits are written; may be null
    // Told every micro-batch's summed loss where the head is, else 0.
    using Each = std::function<void(double loss)>;
    // Told every micro-batch of a training step that has been forward through a chunk, and the slot where it lies.
    void tap(std::function<void(int micro_batch, int chunk, int slot)> tap) { tap_ = std::move(tap); }
    void evaluate(std::int64_t micro_batches, const Source& source, const Each& each);  // forward only

private:
    struct Schedule {
        PipelineShape shape;
        PipelineTable table;
        PipelineSlots slots;
    };
    const Schedule& schedule(std::int64_t micro_batches);
    void forward(const PipelineShape& shape, int micro_batch, int chunk, int slot);
    void backward(const PipelineShape& shape, int micro_batch, int chunk, int slot, int buffer, bool last);
    void settle();  // everything sent was received

    const Config& config_;
    Stream& stream_;
    Ranks ranks_;
    Model& model_;
    std::map<std::int64_t, Schedule> schedules_;  // by micro-batches
    std::vector<Ticket> outputs_, gradients_;     // per slot; per buffer of gradients
    std::function<void(int micro_batch, int chunk, int slot)> tap_;
    Spans* spans_ = nullptr;
};

}  // namespace keel
