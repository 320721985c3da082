// kernels/hopper.cuh: instructions of sm_90a, one function each: mbarriers. A source that uses them is
// compiled for sm_90a alone (kernels/cuda.cmake).
//
// An mbarrier counts arrivals of threads and bytes of bulk copies. It is made for a number of arrivals; its phases are
// numbered from 0, and a phase is over when as many have arrived and all expected bytes have landed. Who waits says the
// parity of the phase that is to be over: for a ring of stages, 0 the first time round, 1 the second.
#pragma once

#include <cstdint>

#include "kernels/device.cuh"
#if !defined(__CUDACC__)
#include "kernels/cudasim/mbarrier.h"
#endif

namespace keel::KEEL_DEVICE {

#if defined(__CUDACC__)
__device__ __forceinline__ std::uint32_t address_in_shared(const void* p) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
#endif

// ---- mbarriers ------------------------------------------------------------------------------------------------------

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
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address_in_shared(barrier)), "r"(bytes)
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
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
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

}  // namespace keel::KEEL_DEVICE
