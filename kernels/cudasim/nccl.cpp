#include "kernels/cudasim/nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cudasim/memory.h"
#include "kernels/cudasim/nccl_sum.h"

namespace sim {
namespace {

enum class What : unsigned char { all_reduce, reduce, broadcast, all_gather, reduce_scatter };
constexpr const char* what_names[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather",
                                      "ncclReduceScatter"};

// What one rank brings to a collective.
struct Post {
    What what;
    std::size_t count;
    cuda::ncclDataType_t type;
    cuda::ncclRedOp_t op;
    int root;
    const std::byte* from;
    std::byte* to;
    Site site;

    bool agrees(const Post& other) const {
        return what == other.what && count == other.count && type == other.type && op == other.op && root == other.root;
    }
    std::string text() const {
        return std::string(what_names[static_cast<int>(what)]) + " of " + std::to_string(count) + " elements of type " +
               std::to_string(type) + " (op " + std::to_string(op) + ", root " + std::to_string(root) + ") at " +
               where(site);
    }
};
// One collective of all ranks, from the first post to the last look.
struct Meeting {
    std::vector<std::unique_ptr<Post>> posts;
    int arrived = 0, seen = 0;
    bool done = false;
};
// A message on its way: done once the receiver has copied it.
struct Message {
    const std::byte* from;
    std::size_t bytes;
    Site site;
    bool done = false;
};

// What the communicators of one id share.
struct World {
    std::mutex mutex;
    int ranks = 0, joined = 0;
    std::map<std::uint64_t, Meeting> meetings;                                  // by number, counted by each rank
    std::map<std::pair<int, int>, std::vector<std::shared_ptr<Message>>> mail;  // by (from, to), oldest first
    cuda::ncclResult_t error = cuda::ncclSuccess;                               // ends everything
    bool left = false;  // a rank has aborted its communicator: nothing is done any more that needs all
};

// What an operation knows of the communicator of its rank, which may be gone before it.
struct Life {
    std::atomic<bool> aborted{false};
    std::atomic<std::uint64_t> posted{0};  // collectives
};

}  // namespace

struct Communicator {
    std::shared_ptr<World> world;
    int rank = 0, device = 0;
    bool blocking = true;
    std::shared_ptr<Life> life = std::make_shared<Life>();
    std::shared_ptr<Life> captured = std::make_shared<Life>();  // every operation in a graph holds it, for its number
};

namespace {

using namespace cuda;

std::mutex worlds_mutex;
std::map<std::string, std::weak_ptr<World>> worlds;
std::uint64_t ids = 0;

// Between ncclGroupStart and ncclGroupEnd: what this thread will submit.
struct Pending {
    cudaStream_t stream;
    Operation operation;
};
thread_local int group_depth = 0;
thread_local std::vector<Pending> group;

ncclResult_t refuse(const std::string& text) {
    report(Kind::bad_call, "NCCL: " + text);
    return ncclInvalidArgument;
}

bool reachable(const void* p, std::size_t bytes) {
    const Found found = find_allocation(p);
    return bytes == 0 ||
           (found.place != Place::unknown && static_cast<const std::byte*>(p) + bytes <= found.data + found.bytes);
}

// A communicator that its rank has aborted ends what waits on it here, and leaves its memory as it is: the other ranks wait until
// they abort theirs. (Where operations happen at the call, who waits is in a call of NCCL's, which a GPU's host never is: nobody could
// abort for it, and another's abort ends it.) One whose ranks disagree breaks the device. With the world's mutex.
bool over(const World& world, const Life& life) {
    if (world.error != ncclSuccess) mark_broken();
    return world.error != ncclSuccess || life.aborted || (world.left && config().streams == Streams::immediate);
}

// A graph that holds operations of a communicator keeps it alive: NCCL's end of it waits until the graph is destroyed.
void await_graphs(const Communicator& comm, const char* what) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::milliseconds(config().patience_ms);
    while (comm.captured.use_count() > 1) {
        if (Clock::now() > until) {
            report(Kind::deadlock, std::string(what) + " of rank " + std::to_string(comm.rank) +
                                       " waits for a graph that holds collectives of its communicator");
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// What an operation that is queued into `stream` now has to hold for that.
std::shared_ptr<Life> hold(const Communicator& comm, cudaStream_t stream) {
    return capturing(stream) ? comm.captured : nullptr;
}

// The whole collective, by the last rank that came, over the buffers of all.
void perform(const Meeting& meeting) {
    const Post& first = *meeting.posts[0];
    const std::size_t n = meeting.posts.size(), bytes = first.count * element_bytes(first.type);
    const auto inputs = [&](std::size_t skip) {  // each rank's input, `skip` bytes on
        std::vector<const std::byte*> all;
        for (const auto& post : meeting.posts) all.push_back(post->from + skip);
        return all;
    };
    std::vector<std::byte> result(bytes);
    switch (first.what) {
        case What::all_reduce:
            reduce_in_order(result.data(), inputs(0), first.count, first.type, first.op);
            for (const auto& post : meeting.posts) std::memcpy(post->to, result.data(), bytes);
            break;
        case What::reduce:
            reduce_in_order(result.data(), inputs(0), first.count, first.type, first.op);
            std::memcpy(meeting.posts[static_cast<std::size_t>(first.root)]->to, result.data(), bytes);
            break;
        case What::broadcast:
            std::memcpy(result.data(), meeting.posts[static_cast<std::size_t>(first.root)]->from, bytes);
            for (const auto& post : meeting.posts) std::memcpy(post->to, result.data(), bytes);
            break;
        case What::all_gather: {
            std::vector<std::byte> all(n * bytes);  // apart, because a rank may gather in place
            for (std::size_t r = 0; r < n; ++r) std::memcpy(all.data() + r * bytes, meeting.posts[r]->from, bytes);
            for (const auto& post : meeting.posts) std::memcpy(post->to, all.data(), all.size());
            break;
        }
        case What::reduce_scatter: {
            std::vector<std::byte> all(n * bytes);
            for (std::size_t r = 0; r < n; ++r)
                reduce_in_order(all.data() + r * bytes, inputs(r * bytes), first.count, first.type, first.op);
            for (std::size_t r = 0; r < n; ++r) std::memcpy(meeting.posts[r]->to, all.data() + r * bytes, bytes);
            break;
        }
    }
}

// Posts at the first attempt, and is done when the last rank has come. Can be run again, as a graph does.
Operation collective(Communicator* comm, cudaStream_t stream, const Post& post) {
    struct State {
        bool posted = false;
        std::uint64_t number = 0;
    };
    return [world = comm->world, life = comm->life, held = hold(*comm, stream), rank = comm->rank, post,
            state = std::make_shared<State>()] {
        const std::lock_guard lock(world->mutex);
        if (over(*world, *life)) return true;
        if (world->left) return false;
        if (!state->posted) {
            state->number = life->posted++;
            state->posted = true;
            Meeting& meeting = world->meetings[state->number];
            meeting.posts.resize(static_cast<std::size_t>(world->ranks));
            for (const auto& other : meeting.posts) {
                if (!other || other->agrees(post)) continue;
                report(Kind::disagreement, "rank " + std::to_string(rank) + " calls " + post.text() +
                                               ", and another rank " + other->text());
                world->error = ncclInvalidUsage;
                mark_broken();
                return true;
            }
            meeting.posts[static_cast<std::size_t>(rank)] = std::make_unique<Post>(post);
            if (++meeting.arrived == world->ranks) {
                perform(meeting);
                meeting.done = true;
            }
        }
        Meeting& meeting = world->meetings[state->number];
        if (!meeting.done) return false;
        if (++meeting.seen == world->ranks) world->meetings.erase(state->number);
        state->posted = false;
        return true;
    };
}

Operation send(Communicator* comm, cudaStream_t stream, int peer, const std::byte* from, std::size_t bytes, const Site& site) {
    return [world = comm->world, life = comm->life, held = hold(*comm, stream), key = std::pair(comm->rank, peer), from, bytes, site,
            message = std::make_shared<std::shared_ptr<Message>>()] {
        const std::lock_guard lock(world->mutex);
        if (over(*world, *life)) return true;
        if (world->left) return false;
        if (!*message) {
            *message = std::make_shared<Message>(Message{from, bytes, site});
            world->mail[key].push_back(*message);
        }
        if (!(*message)->done) return false;
        message->reset();
        return true;
    };
}

Operation receive(Communicator* comm, cudaStream_t stream, int peer, std::byte* to, std::size_t bytes, const Site& site) {
    return [world = comm->world, life = comm->life, held = hold(*comm, stream), key = std::pair(peer, comm->rank), to, bytes, site] {
        const std::lock_guard lock(world->mutex);
        if (over(*world, *life)) return true;
        if (world->left) return false;
        auto& queue = world->mail[key];
        if (queue.empty()) return false;
        Message& message = *queue.front();
        if (message.bytes != bytes) {
            report(Kind::disagreement, "rank " + std::to_string(key.first) + " sends " + std::to_string(message.bytes) +
                                           " bytes at " + where(message.site) + ", and rank " +
                                           std::to_string(key.second) + " receives " + std::to_string(bytes) + " at " +
                                           where(site));
            world->error = ncclInvalidUsage;
            mark_broken();
            return true;
        }
        std::memcpy(to, message.from, bytes);
        message.done = true;
        queue.erase(queue.begin());
        return true;
    };
}

// Several operations that go on together: none waits for another to be done.
Operation together(std::vector<Operation> operations) {
    struct State {
        std::vector<Operation> operations;
        std::vector<bool> done;
    };
    const std::size_t n = operations.size();
    return [state = std::make_shared<State>(State{std::move(operations), std::vector<bool>(n)})] {
        bool all = true;
        for (std::size_t i = 0; i < state->done.size(); ++i) {
            if (!state->done[i]) state->done[i] = state->operations[i]();
            all = all && state->done[i];
        }
        if (all) state->done.assign(state->done.size(), false);  // a graph runs it again
        return all;
    };
}

void enqueue(cudaStream_t stream, Operation operation) {
    if (group_depth > 0)
        group.push_back({stream, std::move(operation)});
    else
        submit(stream, std::move(operation));
}

ncclResult_t call(Communicator* comm, cudaStream_t stream, const Post& post, std::size_t read_counts,
                  std::size_t write_counts) {
    const std::size_t bytes = element_bytes(post.type);
    const int ranks = comm->world->ranks;
    if (bytes == 0) return refuse("type " + std::to_string(post.type) + " is not simulated");
    if (post.root < 0 || post.root >= ranks)
        return refuse("root " + std::to_string(post.root) + " of " + std::to_string(ranks) + " ranks");
    const bool writes = post.what != What::reduce || post.root == comm->rank;
    if (!reachable(post.from, read_counts * post.count * bytes) ||
        (writes && !reachable(post.to, write_counts * post.count * bytes)))
        return refuse(post.text() + ": a buffer is not as large, or is no memory of the device");
    enqueue(stream, collective(comm, stream, post));
    return ncclSuccess;
}

const std::byte* in(const void* p) { return static_cast<const std::byte*>(p); }
std::byte* out(void* p) { return static_cast<std::byte*>(p); }

}  // namespace

namespace cuda {

const char* ncclGetErrorString(ncclResult_t result) {
    constexpr const char* names[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
    return names[static_cast<int>(result) & 7];
}
const char* ncclGetLastError(ncclComm_t) { return "sim::take_findings says what happened"; }
ncclResult_t ncclGetVersion(int* version) {
    *version = 22809;
    return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    const std::lock_guard lock(worlds_mutex);
    *id = {};
    const std::string text = "cudasim " + std::to_string(++ids);
    std::copy(text.begin(), text.end(), id->internal);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
    if (rank < 0 || rank >= ranks) return refuse("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
    const std::lock_guard lock(worlds_mutex);
    auto& entry = worlds[std::string(id.internal, NCCL_UNIQUE_ID_BYTES)];
    std::shared_ptr<World> world = entry.lock();
    if (!world) entry = world = std::make_shared<World>();
    if (world->ranks != 0 && world->ranks != ranks)
        return refuse("one rank makes a communicator of " + std::to_string(ranks) + " ranks, another one of " +
                      std::to_string(world->ranks));
    {
        const std::lock_guard counting(world->mutex);
        world->ranks = ranks;
        ++world->joined;
    }
    *comm = new Communicator;
    (*comm)->world = std::move(world);
    (*comm)->rank = rank;
    (*comm)->device = current_device();
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    if (const ncclResult_t result = ncclCommInitRank(comm, ranks, id, rank); result != ncclSuccess) return result;
    (*comm)->blocking = config->blocking != 0;
    return (*comm)->blocking ? ncclSuccess : ncclInProgress;
}
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int ranks, const int* devices) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    for (int r = 0; r < ranks; ++r) {
        if (const ncclResult_t result = ncclCommInitRank(&comms[r], ranks, id, r); result != ncclSuccess) return result;
        comms[r]->device = devices ? devices[r] : r;
    }
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    {
        // NCCL waits here for the other ranks, which wait for this one.
        const std::lock_guard lock(comm->world->mutex);
        const auto waits = [](const auto& meeting) { return !meeting.second.done; };
        if (comm->world->error == ncclSuccess && !comm->world->left && std::ranges::any_of(comm->world->meetings, waits))
            report(Kind::bad_call, "NCCL: rank " + std::to_string(comm->rank) +
                                       " destroys its communicator amid a collective; it has to abort it");
    }
    await_graphs(*comm, "ncclCommDestroy");
    delete comm;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    {
        const std::lock_guard lock(comm->world->mutex);
        comm->life->aborted = true;
        comm->world->left = true;
    }
    await_graphs(*comm, "ncclCommAbort");
    delete comm;
    return ncclSuccess;
}
// That another rank has left is heard of as from a network; NCCL within one machine may say nothing.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    const World& world = *comm->world;
    const std::lock_guard lock(comm->world->mutex);
    *error = world.error != ncclSuccess                            ? world.error
             : world.left                                          ? ncclRemoteError
             : !comm->blocking && world.joined < world.ranks ? ncclInProgress
                                                                   : ncclSuccess;
    return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* ranks) {
    *ranks = comm->world->ranks;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
    *rank = comm->rank;
    return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
    ++group_depth;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (group_depth == 0) return refuse("ncclGroupEnd without ncclGroupStart");
    if (--group_depth > 0) return ncclSuccess;
    const std::vector<Pending> pending = std::move(group);
    group.clear();
    // Where operations happen at the call, those of several ranks of one thread must go on together; a stream that
    // waits or is captured takes its own.
    const bool at_once = config().streams == Streams::immediate;
    std::vector<bool> taken(pending.size());
    for (std::size_t i = 0; i < pending.size(); ++i) {
        if (taken[i]) continue;
        std::vector<Operation> operations;
        const bool captured = capturing(pending[i].stream);
        for (std::size_t k = i; k < pending.size(); ++k) {
            if (taken[k] ||
                (pending[k].stream != pending[i].stream && !(at_once && !captured && !capturing(pending[k].stream))))
                continue;
            operations.push_back(pending[k].operation);
            taken[k] = true;
        }
        submit(pending[i].stream, together(std::move(operations)));
    }
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream, Site site) {
    return call(comm, stream, {What::all_reduce, count, type, op, 0, in(from), out(to), site}, 1, 1);
}
ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream, Site site) {
    return call(comm, stream, {What::reduce, count, type, op, root, in(from), out(to), site}, 1, 1);
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream, Site site) {
    const bool is_root = comm->rank == root;
    return call(comm, stream, {What::broadcast, count, type, ncclSum, root, in(from), out(to), site}, is_root ? 1 : 0,
                1);
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream, Site site) {
    return call(comm, stream, {What::all_gather, count, type, ncclSum, 0, in(from), out(to), site}, 1,
                static_cast<std::size_t>(comm->world->ranks));
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream, Site site) {
    return call(comm, stream, {What::reduce_scatter, count, type, op, 0, in(from), out(to), site},
                static_cast<std::size_t>(comm->world->ranks), 1);
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream, Site site) {
    const std::size_t bytes = count * element_bytes(type);
    if (peer < 0 || peer >= comm->world->ranks || !reachable(from, bytes))
        return refuse("a send to no rank, or from no memory, at " + where(site));
    enqueue(stream, send(comm, stream, peer, in(from), bytes, site));
    return ncclSuccess;
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream,
                      Site site) {
    const std::size_t bytes = count * element_bytes(type);
    if (peer < 0 || peer >= comm->world->ranks || !reachable(to, bytes))
        return refuse("a receive from no rank, or to no memory, at " + where(site));
    enqueue(stream, receive(comm, stream, peer, out(to), bytes, site));
    return ncclSuccess;
}

}  // namespace cuda
}  // namespace sim
