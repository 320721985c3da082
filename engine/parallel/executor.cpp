#include "engine/parallel/executor.h"

#include <algorithm>

#include "engine/batch_sizes.h"

namespace keel {

Executor::Executor(const Config& config, Stream& stream, const Ranks& ranks, Model& model)
    : config_(config), stream_(stream), ranks_(ranks), model_(model) {
    for (const std::int64_t samples : BatchSizes(config).all()) (void)schedule(micro_batches(config, samples));
    const ModelUse use = training_use(config, ranks.place);  // what the model's memory was planned for
    outputs_.resize(static_cast<std::size_t>(use.slots)), gradients_.resize(static_cast<std::size_t>(use.gradients));
}

const Executor::Schedule& Executor::schedule(std::int64_t micro_batches) {
    const auto at = schedules_.find(micro_batches);
    if (at != schedules_.end()) return at->second;
    Schedule s{.shape = pipeline_shape(config_.parallel, micro_batches), .table = {}, .slots = {}};
    s.table = pipeline_table(schedule_of(config_.parallel), s.shape, ranks_.pp.rank());
    s.slots = pipeline_slots(s.table, s.shape);
    return schedules_.emplace(micro_batches, std::move(s)).first->second;
}

void Executor::forward(const PipelineShape& shape, int micro_batch, int chunk, int slot) {
    const StagePlace here{ranks_.pp.rank(), chunk};
    Ticket& sent = outputs_[static_cast<std::size_t>(slot)];
    ranks_.pp.wait(stream_, sent);
    if (const auto from = previous_stage(shape, here)) {
        const Spans::Scope span(spans_, "receive", micro_batch, chunk);
        ranks_.pp.receive(stream_, model_.input(chunk, slot), from->rank, message_channel(PipelineAction::forward, chunk));
    }
    const Spans::Scope span(spans_, "forward", micro_batch, chunk);
    model_.forward(chunk, slot);
    if (const auto to = next_stage(shape, here))
        sent = ranks_.pp.send(stream_, model_.output(slot), to->rank, message_channel(PipelineAction::forward, to->chunk));
}

void Executor::backward(const PipelineShape& shape, int micro_batch, int chunk, int slot, int buffer, bool last) {
    const StagePlace here{ranks_.pp.rank(), chunk};
    Ticket& sent = gradients_[static_cast<std::size_t>(buffer)];
    ranks_.pp.wait(stream_, sent);
    if (const auto from = next_stage(shape, here)) {
        const Spans::Scope span(spans_, "receive", micro_batch, chunk);
        ranks_.pp.receive(stream_, model_.gradient(slot, buffer), from->rank, message_channel(PipelineAction::backward, chunk));
    }
    const Spans::Scope span(spans_, "backward", micro_batch, chunk);
    model_.backward(chunk, slot, buffer, last);
    if (const auto to = previous_stage(shape, here))
        sent = ranks_.pp.send(stream_, model_.gradient(slot, buffer), to->rank, message_channel(PipelineAction::backward, to->chunk));
}

void Executor::settle() {
    for (Ticket& t : outputs_) ranks_.pp.wait(stream_, t);
    for (Ticket& t : gradients_) ranks_.pp.wait(stream_, t);
}

bool Executor::train(std::int64_t micro_batches, const Source& source, const Stop& stop) {
    const Schedule& s = schedule(micro_batches);
    int buffer = 0;
    for (const PipelineAction& action : s.table) {
        const int slot = s.slots.of(action);
        if (action.kind == PipelineAction::forward) {
            if (s.shape.stages == 1 && action.micro_batch > 0 && stop && stop()) return false;
            model_.load(slot, source(action.micro_batch));
            forward(s.shape, action.micro_batch, action.chunk, slot);
            if (tap_) tap_(action.micro_batch, action.chunk, slot);
        } else {
            backward(s.shape, action.micro_batch, action.chunk, slot, buffer, action.micro_batch == s.shape.micro_batches - 1);
            buffer = (buffer + 1) % static_cast<int>(gradients_.size());
        }
    }
    settle();
    return true;
}

void Executor::evaluate(std::int64_t micro_batches, const Source& source, const Each& each) {
    const PipelineShape shape = pipeline_shape(config_.parallel, 1);
    const auto slots = static_cast<std::int64_t>(outputs_.size());
    for (std::int64_t i = 0; i < micro_batches; ++i) {
        const int slot = static_cast<int>(i % slots);
        model_.load(slot, source(i));
        for (int chunk = 0; chunk < shape.chunks; ++chunk) forward(shape, static_cast<int>(i), chunk, slot);
        each(model_.loss(slot));
    }
    settle();
}

}  // namespace keel
