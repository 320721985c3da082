// kernels/cudasim/fiber.h: a second stack to run on, and the switch from one to another.
//
// A switch saves the registers that a call must preserve, and nothing else: 7 ns on x86-64. Other processors than
// x86-64 and aarch64 take ucontext, thirty times slower. A fiber stays on the thread of the host that made it, because
// compilers keep the address of thread_local variables over calls.
//
// With the address sanitizer every switch is announced to it; with the thread sanitizer every Fiber is a thread of its
// own, and a switch alone orders nothing between two of them.
#pragma once

#include <cstddef>
#include <memory>

#if !defined(__x86_64__) && !defined(__aarch64__)
#define SIM_UCONTEXT 1
#endif
#if SIM_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN 1
#endif
#endif
// SIM_TSAN comes from the build: the model itself is compiled without the thread sanitizer, and tells it what orders
// what.

namespace sim {

class Fiber {
public:
    Fiber() = default;  // the place a thread of the host stands at; switched away from before it is switched to
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;
    ~Fiber();

    // Afterwards a switch to this fiber calls entry(), on a stack of its own. entry never returns.
    void start(void (*entry)());

    // Leaves `from`, which is the running one, and continues `to` where it was left. `last` says that `from` is never
    // continued: it may be started anew.
    static void switch_from(Fiber& from, Fiber& to, bool last = false);
    // The first thing entry() calls.
    static void entered();

private:
    void make_stack();

    void* stack_pointer_ = nullptr;
    std::byte* stack_ = nullptr;  // with the guard page below
    std::size_t stack_bytes_ = 0;
#if SIM_UCONTEXT
    ucontext_t context_;
#endif
    void* sanitizer_ = nullptr;  // the address sanitizer's fake stack, or the thread sanitizer's thread
    const void* bottom_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace sim
