// engine/overlap/worker.h: a thread that communicates while others compute.
//
// Tasks run one at a time, in the order they were posted, on a Stream of one thread. Every rank posts the same tasks in the
// same order, so their collectives meet. Nothing allocates after the constructor. An exception of a task is kept, later
// tasks are dropped, and whoever waits next gets it.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/stream.h"

namespace keel {

class Worker {
public:
    explicit Worker(int capacity);  // tasks that may be waiting at once; posting more waits
    ~Worker();                      // after all tasks
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    // run(object, argument, stream) on the thread. Returns the task's number, counted from 1.
    using Run = void (*)(void* object, int argument, Stream& stream);
    std::int64_t post(Run run, void* object, int argument);
    // Task `number` and all before it are done afterwards; rethrows what one of them threw.
    void wait(std::int64_t number);
    void wait_all();
    double busy_seconds() const;  // that tasks have run so far

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace keel
