// kernels/async.cuh: copies from global to shared memory that a thread starts and waits for later (cp.async, sm_80),
// and barriers for part of a block.
//
// The pattern: start copies, cp_async_commit() closes a group, cp_async_wait<n>() waits until at most the last n groups
// are in flight. It makes this thread's own copies visible to itself; the others see them after a barrier.
#pragma once

#include "kernels/device.cuh"
#if !defined(__CUDACC__)
#include "kernels/cudasim/async.h"
#endif

namespace keel::KEEL_DEVICE {

// 16 bytes, both sides 16-byte aligned. If not `valid` the destination becomes zero and the source is not read (it must
// still be a pointer into some allocation). Bypasses the first-level cache.
KEEL_INLINE void cp_async_16(void* shared, const void* global, bool valid = true KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
        "l"(global), "r"(valid ? 16 : 0)
        : "memory");
#else
    ::sim::copy_async(shared, global, 16, valid ? 0 : 16, site);
#endif
}
// 4 bytes, through the first-level cache.
KEEL_INLINE void cp_async_4(void* shared, const void* global, bool valid = true KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
        "l"(global), "r"(valid ? 4 : 0)
        : "memory");
#else
    ::sim::copy_async(shared, global, 4, valid ? 0 : 4, site);
#endif
}
KEEL_INLINE void cp_async_commit() {
#if defined(__CUDACC__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    ::sim::commit_copies();
#endif
}
template <int groups_left>
KEEL_INLINE void cp_async_wait() {
#if defined(__CUDACC__)
    asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
#else
    ::sim::wait_copies(groups_left);
#endif
}

// Barrier `id` (1 … 15; 0 is __syncthreads) for `threads` threads of the block, a multiple of 32.
KEEL_INLINE void barrier_sync(int id, int threads KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
    ::sim::Block::current().barrier(static_cast<unsigned>(id), static_cast<unsigned>(threads), site);
#endif
}
// Counts as one of the threads, and goes on.
KEEL_INLINE void barrier_arrive(int id, int threads KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
    ::sim::Block::current().arrive(static_cast<unsigned>(id), static_cast<unsigned>(threads), site);
#endif
}

}  // namespace keel::KEEL_DEVICE
