// engine/overlap/step_graph.h: the work of a training step on a GPU as one graph, launched at once instead of kernel by kernel.
//
// The first step of a size runs as it is queued: libraries choose their algorithms. The second is captured while it is queued
// and then launched; later ones are launched again, on the batches of their own that lie where the graph reads them. What
// changes from step to step, the update with its learning rate, is not part of it. On the CPU, with --run.graph false, and where
// a step cannot be a graph, every step is queued. Collectives are part of it: ranks meet when it is captured, and every rank
// launches it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/config.h"
#include "engine/memory/backend.h"

namespace keel {

// Whether what a step queues depends on nothing but its size, and on no stream but this rank's own. Messages between ranks, of a
// pipeline or a ring, join the streams of two GPUs by events, of which no graph may be a part; exact sums choose a scale for
// every step; a fault that is injected is no part of any other step.
bool can_be_one_graph(const Config& config);

class StepGraph {
public:
    // The backend outlives it.
    StepGraph(const Backend& backend, bool on) : backend_(backend), on_(on && backend.gpu) {}

    // What decides which kernels a step queues, and with what.
    struct Size {
        std::int64_t samples, micro_batch;
        bool operator==(const Size&) const = default;
    };
    // `queue` queues all of the step and waits for none of it; false if it gave up. `refill` only puts the step's batches where
    // the last `queue` took its own from. Returns false if the step was given up.
    template <class Queue, class Refill> bool run(Size size, Queue&& queue, Refill&& refill) {
        if (!on_) return queue();
        Captured& step = of(size);
        if (step.graph) {
            refill();
        } else if (!step.seen) {
            return step.seen = queue();
        } else {
            Capture capture(backend_);
            if (!queue()) return false;
            step.graph = capture.end();
        }
        backend_.gpu->launch(*step.graph, backend_.stream);
        return true;
    }
    // Steps that were launched as graphs of these many nodes; for tests and reports.
    std::int64_t nodes() const;

private:
    struct Captured {
        Size size;
        bool seen = false;
        std::unique_ptr<GpuGraph> graph;
    };
    // Whatever ends the scope, the stream does not stay in capture.
    class Capture {
    public:
        explicit Capture(const Backend& backend) : backend_(backend) { backend.gpu->begin_capture(backend.stream); }
        ~Capture();
        Capture(const Capture&) = delete;
        Capture& operator=(const Capture&) = delete;
        std::unique_ptr<GpuGraph> end();

    private:
        const Backend& backend_;
        bool open_ = true;
    };
    Captured& of(Size size);

    Backend backend_;
    bool on_;
    std::vector<Captured> steps_;  // one for each size that the batch ramp comes to
};

}  // namespace keel
