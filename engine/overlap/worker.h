// engine/overlap/worker.h: who communicates while others compute. On the CPU a thread; on a GPU a queue of its own, beside the
// one that computes, and events between them.
//
// Tasks run one at a time, in the order they were posted. Every rank posts the same tasks in the same order, so their
// collectives meet. What was queued on the backend's stream before a task was posted comes before it; what is queued there
// after wait(), behind it. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/memory/backend.h"

namespace keel {

class Worker {
public:
    virtual ~Worker() = default;  // after all tasks

    // run(object, argument, stream), on a stream of the worker's. Returns the task's number, counted from 1.
    using Run = void (*)(void* object, int argument, Stream& stream);
    virtual std::int64_t post(Run run, void* object, int argument) = 0;
    // Task `number` and all before it are done afterwards: on a GPU, for what is queued from now on.
    virtual void wait(std::int64_t number) = 0;
    virtual double busy_seconds() const = 0;  // that tasks have run so far; a GPU's are not measured
};

// `capacity`: tasks that may be waiting at once; posting more waits. The backend outlives it. On the CPU an exception of a task
// is kept, later tasks are dropped, and whoever waits next gets it.
std::unique_ptr<Worker> make_worker(const Backend& backend, int capacity);

}  // namespace keel
