#include "kernels/cudasim/streams.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/cudasim/memory.h"
#include "kernels/cudasim/runtime.h"

namespace sim {

struct Node {
    Operation operation;
    std::vector<std::size_t> after;
};
struct Graph {
    std::vector<Node> nodes;
    std::vector<Stream*> streams;  // being captured into it, the first of them where capture began
};
// What outlives a destroyed Event while operations still name it.
struct EventState {
    std::atomic<std::uint64_t> submitted{0}, completed{0};  // records
    std::chrono::steady_clock::time_point when{};
};
struct Event {
    int device = 0;
    std::shared_ptr<EventState> state = std::make_shared<EventState>();
    Graph* graph = nullptr;  // the last record was captured into it, after these nodes
    std::vector<std::size_t> after;
};
struct Stream {
    int device = 0;
    bool blocking = true;  // against the default stream
    bool busy = false;     // an operation is being tried
    std::deque<Operation> queue;
    Graph* graph = nullptr;
    std::vector<std::size_t> tails;  // nodes the next one comes after
};

namespace {

std::mutex mutex;  // of all below; not held while an operation runs
std::vector<std::unique_ptr<Stream>> streams;
std::uint64_t draws = 0;
std::atomic<int> live_events{0};
thread_local int device = 0;

std::uint64_t draw() {
    std::uint64_t z = (config().seed + 0x632be59bd9b4e019u) * 0x9e3779b97f4a7c15u + ++draws * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 31)) * 0x94d049bb133111ebu;
    return z ^ (z >> 29);
}

bool attempt(const Operation& operation) {
    const OpenMemory open;
    return operation();
}

// Attempts the heads of a device's streams in a random order until one is done; false if none can be. While one is attempted other
// threads may advance, so which streams wait is asked anew each time.
bool advance(int of) {
    std::unique_lock lock(mutex);
    std::vector<Stream*> tried, heads;
    for (;;) {
        heads.clear();
        for (const auto& stream : streams)
            if (stream->device == of && !stream->busy && !stream->queue.empty() &&
                std::find(tried.begin(), tried.end(), stream.get()) == tried.end())
                heads.push_back(stream.get());
        if (heads.empty()) return false;
        Stream* const stream = heads[draw() % heads.size()];
        stream->busy = true;
        const Operation operation = stream->queue.front();
        lock.unlock();
        const bool done = attempt(operation);
        lock.lock();
        stream->busy = false;
        if (done) {
            stream->queue.pop_front();
            return true;
        }
        tried.push_back(stream);
    }
}

bool empty(const Stream* stream) {
    const std::lock_guard lock(mutex);
    if (stream) return stream->queue.empty();
    return std::none_of(streams.begin(), streams.end(),
                        [](const auto& s) { return s->device == device && !s->queue.empty(); });
}

bool blocking_streams_empty() {
    const std::lock_guard lock(mutex);
    return std::none_of(streams.begin(), streams.end(),
                        [](const auto& s) { return s->device == device && s->blocking && !s->queue.empty(); });
}

}  // namespace

int events() { return live_events; }
int current_device() { return device; }
void set_current_device(int to) { device = to; }

bool capturing(const Stream* stream) { return stream && stream->graph; }

bool on_current_device(const Stream* stream, const char* what, const Site& site) {
    if (!stream || stream->device == device) return true;
    report(Kind::bad_call, std::string(what) + " into a stream of device " + std::to_string(stream->device) + " by a thread whose device is " +
                               std::to_string(device) + ", at " + where(site) + "; cudaSetDevice belongs to a thread");
    return false;
}

static bool drain(int of, const std::function<bool()>& until) {
    auto last = std::chrono::steady_clock::now();
    const std::chrono::milliseconds patience(config().patience_ms);
    while (!until()) {
        if (advance(of)) {
            last = std::chrono::steady_clock::now();
            continue;
        }
        if (std::chrono::steady_clock::now() - last > patience) {
            report(Kind::deadlock, "a stream of device " + std::to_string(of) +
                                       " waits for an event that nobody records, or a "
                                       "collective whose peers do not come");
            return false;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
}
bool drain(const std::function<bool()>& until) { return drain(device, until); }
bool drain(Stream* stream) {
    return drain(stream ? stream->device : device, [stream] { return empty(stream); });
}

void submit(Stream* stream, Operation operation) {
    if (stream && stream->graph) {
        const std::lock_guard lock(mutex);
        stream->graph->nodes.push_back({std::move(operation), stream->tails});
        stream->tails = {stream->graph->nodes.size() - 1};
        return;
    }
    if (stream && config().streams == Streams::deferred) {
        const std::lock_guard lock(mutex);
        stream->queue.push_back(std::move(operation));
        return;
    }
    // The default stream begins when every blocking stream is done, and is done before any goes on.
    if (!stream)
        drain(blocking_streams_empty);
    else
        drain(stream);  // what was queued before the mode changed
    drain([&] { return attempt(operation); });
}

namespace cuda {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    const std::lock_guard lock(mutex);
    streams.push_back(std::make_unique<Stream>());
    *stream = streams.back().get();
    (*stream)->device = device;
    (*stream)->blocking = flags != cudaStreamNonBlocking;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!drain(stream)) return set_last_error(cudaErrorLaunchFailure);
    const std::lock_guard lock(mutex);
    const auto at = std::find_if(streams.begin(), streams.end(), [=](const auto& s) { return s.get() == stream; });
    if (at == streams.end()) return set_last_error(cudaErrorInvalidResourceHandle);
    streams.erase(at);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    const InModel in_model;
    if (capturing(stream)) return set_last_error(cudaErrorStreamCaptureUnsupported);
    if (!drain(stream)) return set_last_error(cudaErrorLaunchFailure);
    return broken() ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    if (!drain(nullptr)) return set_last_error(cudaErrorLaunchFailure);
    return broken() ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    advance(stream ? stream->device : device);  // time passes while a program polls
    return empty(stream) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = new Event;
    (*event)->device = device;
    ++live_events;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    --live_events;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (const int of = stream ? stream->device : device; of != event->device) {
        report(Kind::bad_call, "cudaEventRecord of an event of device " + std::to_string(event->device) + " on a stream of device " +
                                   std::to_string(of));
        return set_last_error(cudaErrorInvalidResourceHandle);
    }
    {
        const std::lock_guard lock(mutex);
        event->graph = nullptr;
        if (capturing(stream)) {
            event->graph = stream->graph;
            event->after = stream->tails;
            return cudaSuccess;
        }
    }
    const std::uint64_t number = ++event->state->submitted;
    submit(stream, [state = event->state, number] {
        if (number <= state->completed) return true;  // recorded on two streams, and the later one was first
        state->completed = number;
        state->when = std::chrono::steady_clock::now();
        return true;
    });
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (event->graph) {
        const std::lock_guard lock(mutex);
        // The stream joins the capture, after whatever the event comes after.
        if (!stream || (stream->graph && stream->graph != event->graph))
            return set_last_error(cudaErrorStreamCaptureInvalidated);
        if (!stream->graph) {
            stream->graph = event->graph;
            stream->tails.clear();
            event->graph->streams.push_back(stream);
        }
        for (const std::size_t node : event->after)
            if (std::find(stream->tails.begin(), stream->tails.end(), node) == stream->tails.end())
                stream->tails.push_back(node);
        return cudaSuccess;
    }
    if (capturing(stream)) return set_last_error(cudaErrorStreamCaptureUnsupported);
    if (event->state->submitted == 0) return cudaSuccess;  // never recorded: no wait
    submit(stream,
           [state = event->state, number = event->state->submitted.load()] { return state->completed >= number; });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const auto state = event->state;
    if (!drain(event->device, [&] { return state->completed >= state->submitted; })) return set_last_error(cudaErrorLaunchFailure);
    return broken() ? cudaErrorLaunchFailure : cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    advance(event->device);
    return event->state->completed >= event->state->submitted ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    if (begin->state->completed == 0 || end->state->completed == 0)
        return set_last_error(cudaErrorInvalidResourceHandle);
    *ms = std::chrono::duration<float, std::milli>(end->state->when - begin->state->when).count();
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    submit(stream, [=] {
        function(data);
        return true;
    });
    return cudaSuccess;
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (!stream) return set_last_error(cudaErrorStreamCaptureUnsupported);
    const std::lock_guard lock(mutex);
    if (stream->graph) return set_last_error(cudaErrorStreamCaptureUnsupported);
    stream->graph = new Graph;
    stream->graph->streams = {stream};
    stream->tails.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    *status = capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
    const std::lock_guard lock(mutex);
    if (!capturing(stream) || stream->graph->streams.front() != stream)
        return set_last_error(cudaErrorStreamCaptureUnsupported);
    std::unique_ptr<Graph> graph(stream->graph);
    // Every node must come before the end of the stream where capture began.
    std::vector<bool> joined(graph->nodes.size());
    std::vector<std::size_t> open = stream->tails;
    while (!open.empty()) {
        const std::size_t node = open.back();
        open.pop_back();
        if (joined[node]) continue;
        joined[node] = true;
        open.insert(open.end(), graph->nodes[node].after.begin(), graph->nodes[node].after.end());
    }
    for (Stream* s : graph->streams) s->graph = nullptr, s->tails.clear();
    graph->streams.clear();
    if (std::find(joined.begin(), joined.end(), false) != joined.end()) {
        report(Kind::bad_call,
               "cudaStreamEndCapture: work of another stream was captured and never joined by an event");
        *out = nullptr;
        return set_last_error(cudaErrorStreamCaptureUnjoined);
    }
    *out = graph.release();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    *exec = new Graph(*graph);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete exec;
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void*, std::size_t* count) {
    *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    const InModel in_model;
    // The nodes live with the replay: a graph may be destroyed as soon as it is launched.
    struct Replay {
        Graph graph;
        std::vector<bool> done;
        std::size_t left;
    };
    auto replay = std::make_shared<Replay>(Replay{*exec, std::vector<bool>(exec->nodes.size()), exec->nodes.size()});
    submit(stream, [replay] {
        for (bool progress = true; progress && replay->left > 0;) {
            std::vector<std::size_t> ready;
            for (std::size_t n = 0; n < replay->done.size(); ++n) {
                const auto& after = replay->graph.nodes[n].after;
                if (!replay->done[n] &&
                    std::all_of(after.begin(), after.end(), [&](std::size_t a) { return replay->done[a]; }))
                    ready.push_back(n);
            }
            progress = false;
            while (!ready.empty() && !progress) {
                const std::size_t chosen = draw() % ready.size();
                if (replay->graph.nodes[ready[chosen]].operation()) {
                    replay->done[ready[chosen]] = true;
                    --replay->left;
                    progress = true;
                } else {
                    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(chosen));
                }
            }
        }
        return replay->left == 0;
    });
    return cudaSuccess;
}

}  // namespace cuda
}  // namespace sim
