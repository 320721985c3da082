// kernels/cudasim/streams.h: queues of operations, events, and graphs recorded from them.
//
// Immediate streams do everything at the call. Deferred ones do nothing until somebody waits; then an operation is
// chosen at random among those whose stream and events allow it, again and again, until what is waited for is done. A
// program that forgot an event thus meets the order it did not think of. Capture turns operations into a graph; a
// replay runs its nodes in a random order that its edges allow.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/cudasim/config.h"
#include "kernels/cudasim/findings.h"

namespace sim {

struct Stream;
struct Event;
struct Graph;

namespace cuda {
using cudaStream_t = ::sim::Stream*;
using cudaEvent_t = ::sim::Event*;
using cudaGraph_t = ::sim::Graph*;
using cudaGraphExec_t = ::sim::Graph*;
}  // namespace cuda

// An operation: true when done, false if it cannot be done yet (a collective whose peers are not there).
using Operation = std::function<bool()>;

// `stream` may be null: the default stream of the calling thread's device.
void submit(Stream* stream, Operation operation);
bool capturing(const Stream* stream);
// Whether the stream is of the calling thread's device, where alone a kernel may be launched into it; reports if not.
bool on_current_device(const Stream* stream, const char* what, const Site& site);
// Runs operations of the calling thread's device until `until()`, in deferred mode; reports a deadlock when nothing can
// go on for long.
bool drain(const std::function<bool()>& until);
bool drain(Stream* stream);  // all of it, on any device; null: everything on the calling thread's

int events();  // that were made and not yet destroyed, of all devices

int current_device();  // of the calling thread
void set_current_device(int device);

}  // namespace sim
