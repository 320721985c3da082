// comm/nccl.h: ranks are GPUs. A World over another one, `control` (threads of one process, or processes under MPI),
// which agrees on the host while NCCL moves the memory of GPUs.
//
// Every collective begins with a meeting of the hosts: ranks compare what they bring, so that whoever does not come,
// has left or brings something else is named within control's deadline, before anything waits for it on a GPU. What
// lies in the memory of the host goes through control altogether, and so do votes.
//
// Order     on a stream of a GPU, collectives of its memory are asynchronous: queued when they return, in memory when the
//           stream gets there. A graph that is captured has met once, when it was captured.
// Sums      in the order of ranks, the bits of every other transport. NCCL's own sums have an order that depends on its
//           algorithm and on the wires, so NCCL only moves: ranks exchange parts, each adds those of its own in one
//           kernel, and parts are gathered. That sends what a ring would: 2 (n-1)/n of x.
// Messages  between threads the receiver's GPU copies from the sender's memory, ordered by events; nobody waits but
//           streams. Between processes they pass through memory of the host and MPI, and the sender's host waits for
//           its stream.
// Abort     a rank that leaves tells the world (World::abort), and then aborts its communicators; a thread of every other
//           rank sees it and does the same, which ends the kernels of NCCL that wait for it. One that an exception unwinds
//           aborts its own before the world is told; so it is better told where the exception is met while all that uses
//           the GPU still lives. What NCCL says to the others of that waits until they know who left, and why.
//           ncclCommAbort ends what waits, and then waits itself for every graph that holds collectives of its
//           communicator: threads of their own call it, and the world must outlive such graphs, which its groups need not.
//           Communicators are made without blocking (ncclConfig_t), so that no call of NCCL waits for a peer longer than
//           until that, or the deadline.
// Memory    of the GPU: what a group is lent (Group::lend), or buffer_bytes of its own, reserved when it is made; and what
//           NCCL takes for a communicator. A group that has neither has no communicator, and no collectives on the GPU:
//           messages, votes and what lies on the host need none.
// NCCL      is found at run time (libnccl.so.2); a keel without it trains on the CPU and on one GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/world.h"

namespace keel {

struct NcclOptions {
    std::int64_t buffer_bytes = 32 << 20;  // of every group, where peers' parts of a sum arrive; 0: groups are lent it
    bool direct = true;                    // between threads: messages are read where they lie
    double deadline_s = 600;               // how long NCCL may take to connect the ranks of a group
};

// What a group of `ranks` is to be lent where `largest_bytes` is the most that a rank brings to a collective: enough for
// one round, up to a size past which more of it is no faster. Of 0 bytes: the least that a group takes.
std::int64_t nccl_buffer_bytes(std::int64_t largest_bytes, std::int64_t ranks);
constexpr std::int64_t nccl_small_bytes = 64 << 10;  // of x of all ranks: so few are gathered whole, and summed by everybody
constexpr std::int64_t nccl_alignment = 16;          // of parts in the buffer, for vectors

// Why NCCL cannot be had for that device, in one line; nothing if it can.
std::optional<std::string> why_no_nccl(Device device);

std::string nccl_version(Device device);  // "NCCL 2.28.9", or "no NCCL: …" with the reason

// This rank's view, on GPU `gpu` of this machine. Every rank of control makes one, on a GPU of its own; control
// outlives it. Groups of it may be used by any thread, one at a time; the calling thread's current GPU becomes `gpu`.
std::unique_ptr<World> nccl_world(World& control, Device device, int gpu, const NcclOptions& options = {});

}  // namespace keel
