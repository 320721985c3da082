// kernels/hopper.cuh: instructions of sm_90a, one function each: mbarriers, bulk copies of boxes of tensors (TMA),
// registers; wgmma.cuh has the products. A source that uses them is compiled for sm_90a alone (kernels/cuda.cmake).
//
// An mbarrier counts arrivals of threads and bytes of bulk copies. It is made for a number of arrivals; its phases are
// numbered from 0, and a phase is over when as many have arrived and all expected bytes have landed. Who waits says the
// parity of the phase that is to be over: for a ring of stages, 0 the first time round, 1 the second. A phase before
// the first counts as over.
//
// Bulk copies and wgmma go through the asynchronous proxy: what threads have written to shared memory they see after
// fence_async(). What they have written, or read, threads see or may overwrite after waiting for them.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/device.cuh"
#if !defined(__CUDACC__)
#include "kernels/cudasim/bulk.h"
#include "kernels/cudasim/mbarrier.h"
#include "kernels/cudasim/wgmma.h"
#endif

namespace keel::KEEL_DEVICE {

KEEL_INLINE std::uint32_t address_in_shared(const void* p) {
#if defined(__CUDACC__)
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
#else
    return ::sim::address_in_shared(p);
#endif
}

// ---- mbarriers -----------------------------------------------------------------------------------------------------

// By one thread; the others may use it after fence_mbarrier_init() by this one and a barrier of the block.
KEEL_INLINE void mbarrier_init(std::uint64_t* barrier, unsigned arrivals KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_in_shared(barrier)), "r"(arrivals) : "memory");
#else
    ::sim::mbarrier_init(barrier, arrivals, site);
#endif
}
// Bulk copies see the mbarriers that this thread has made.
KEEL_INLINE void fence_mbarrier_init() {
#if defined(__CUDACC__)
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
    ::sim::fence_mbarrier_init();
#endif
}
// Bulk copies and wgmma see what this thread has written to shared memory, and what it has seen others write there.
KEEL_INLINE void fence_async() {
#if defined(__CUDACC__)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
    ::sim::fence_async();
#endif
}
// Nobody uses it any more; its 8 bytes are free.
KEEL_INLINE void mbarrier_invalidate(std::uint64_t* barrier KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(address_in_shared(barrier)) : "memory");
#else
    ::sim::mbarrier_invalidate(barrier, site);
#endif
}
// What this thread did before is seen by those that wait for the phase.
KEEL_INLINE void mbarrier_arrive(std::uint64_t* barrier KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_in_shared(barrier)) : "memory");
#else
    ::sim::mbarrier_arrive(barrier, 0, true, site);
#endif
}
// The phase is not over before `bytes` more have landed.
KEEL_INLINE void mbarrier_expect(std::uint64_t* barrier, unsigned bytes KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address_in_shared(barrier)),
                 "r"(bytes)
                 : "memory");
#else
    ::sim::mbarrier_arrive(barrier, bytes, false, site);
#endif
}
// The same, and arrives.
KEEL_INLINE void mbarrier_arrive_expect(std::uint64_t* barrier, unsigned bytes KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_in_shared(barrier)), "r"(bytes)
                 : "memory");
#else
    ::sim::mbarrier_arrive(barrier, bytes, true, site);
#endif
}
// Whether the phase of this parity is over; may wait a while for it, and may say no where it could have said yes.
KEEL_INLINE bool mbarrier_try_wait(std::uint64_t* barrier, unsigned parity KEEL_SITE) {
#if defined(__CUDACC__)
    unsigned over;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(over)
                 : "r"(address_in_shared(barrier)), "r"(parity)
                 : "memory");
    return over != 0;
#else
    return ::sim::mbarrier_wait(barrier, parity, site);
#endif
}
KEEL_INLINE void mbarrier_wait(std::uint64_t* barrier, unsigned parity KEEL_SITE) {
    while (!mbarrier_try_wait(barrier, parity KEEL_SITE_ARGUMENT)) {
    }
}

// ---- bulk copies of boxes of tensors (kernels/tensor_map.cuh makes the maps) ---------------------------------------

// By one thread. Brings the box whose first element has these coordinates, innermost first; they may be negative. What
// lies outside of the tensor becomes zero. `shared` is a multiple of 128 bytes. The box's bytes, all of them, count at
// the mbarrier.
KEEL_INLINE void load_box(void* shared, const CUtensorMap& map, std::uint64_t* barrier, int c0, int c1 KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(address_in_shared(shared)),
        "l"(&map), "r"(address_in_shared(barrier)), "r"(c0), "r"(c1)
        : "memory");
#else
    ::sim::load_box(shared, &map, barrier, {c0, c1}, site);
#endif
}
KEEL_INLINE void load_box(void* shared, const CUtensorMap& map, std::uint64_t* barrier, int c0, int c1,
                          int c2 KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(address_in_shared(shared)),
        "l"(&map), "r"(address_in_shared(barrier)), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
#else
    ::sim::load_box(shared, &map, barrier, {c0, c1, c2}, site);
#endif
}
KEEL_INLINE void load_box(void* shared, const CUtensorMap& map, std::uint64_t* barrier, int c0, int c1, int c2,
                          int c3 KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
        "%6}], "
        "[%2];" ::"r"(address_in_shared(shared)),
        "l"(&map), "r"(address_in_shared(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
#else
    ::sim::load_box(shared, &map, barrier, {c0, c1, c2, c3}, site);
#endif
}
// By one thread, after fence_async() by those that wrote the box. What lies outside of the tensor is not written.
KEEL_INLINE void store_box(const CUtensorMap& map, const void* shared, int c0, int c1 KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
                 "r"(address_in_shared(shared)), "r"(c0), "r"(c1)
                 : "memory");
#else
    ::sim::store_box(&map, shared, {c0, c1}, site);
#endif
}
KEEL_INLINE void store_box(const CUtensorMap& map, const void* shared, int c0, int c1, int c2 KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
                 "r"(address_in_shared(shared)), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
#else
    ::sim::store_box(&map, shared, {c0, c1, c2}, site);
#endif
}
KEEL_INLINE void store_box(const CUtensorMap& map, const void* shared, int c0, int c1, int c2, int c3 KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(address_in_shared(shared)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
#else
    ::sim::store_box(&map, shared, {c0, c1, c2, c3}, site);
#endif
}
// Closes a group of this thread's stores.
KEEL_INLINE void commit_stores() {
#if defined(__CUDACC__)
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
    ::sim::commit_stores();
#endif
}
// All but the last groups of this thread's stores have read shared memory. Before the block ends, all must have.
template <int groups_left>
KEEL_INLINE void wait_stores() {
#if defined(__CUDACC__)
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups_left) : "memory");
#else
    ::sim::wait_stores(groups_left);
#endif
}

// ---- registers -----------------------------------------------------------------------------------------------------

// By all warps of a warpgroup: each thread goes on with `count` registers, a multiple of 8 from 24 to 256. Those that
// ask for more wait until others have given them up: the sum over the block must not pass 65536.
template <int count>
KEEL_INLINE void give_up_registers(KEEL_ONLY_SITE) {
#if defined(__CUDACC__)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#else
    ::sim::set_max_registers(count, site);
#endif
}
template <int count>
KEEL_INLINE void take_registers(KEEL_ONLY_SITE) {
#if defined(__CUDACC__)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#else
    ::sim::set_max_registers(count, site);
#endif
}

}  // namespace keel::KEEL_DEVICE
