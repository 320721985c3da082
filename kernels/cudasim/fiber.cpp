#include "kernels/cudasim/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>

#if SIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if SIM_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if !SIM_UCONTEXT
// sim_switch(void** from, void* to): the registers a call preserves go on this stack, its pointer to *from; then the
// same from `to`. It ends in a jump, because a return would be predicted to go back to this caller.
extern "C" void sim_switch(void** from, void* to);
#endif
#if defined(__x86_64__)
asm(R"(
    .text
    .p2align 4
    .globl sim_switch
    .hidden sim_switch
    .type sim_switch, @function
sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
    .size sim_switch, .-sim_switch
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .p2align 4
    .globl sim_switch
    .hidden sim_switch
    .type sim_switch, %function
sim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    br x30
    .size sim_switch, .-sim_switch
)");
#endif

namespace sim {
namespace {

// Large local arrays are common in kernels, and sanitizers make frames larger.
#if SIM_ASAN || SIM_TSAN
constexpr std::size_t stack_bytes = 256 << 10;
#else
constexpr std::size_t stack_bytes = 128 << 10;
#endif

thread_local Fiber* switching_from = nullptr;  // for entered(): a new fiber does not return from a switch of its own

}  // namespace

Fiber::~Fiber() {
    if (stack_) munmap(stack_, stack_bytes_);
#if SIM_TSAN
    if (stack_ && sanitizer_) __tsan_destroy_fiber(sanitizer_);
#endif
}

void Fiber::make_stack() {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    stack_bytes_ = stack_bytes + page;
    void* memory =
        mmap(nullptr, stack_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory, page, PROT_NONE);  // an overflow stops here and not in a neighbour's stack
    stack_ = static_cast<std::byte*>(memory);
    bottom_ = stack_ + page;
    size_ = stack_bytes;
#if SIM_TSAN
    sanitizer_ = __tsan_create_fiber(0);
#endif
}

void Fiber::start(void (*entry)()) {
    if (!stack_) make_stack();
#if SIM_ASAN
    // What the last owner of this stack left poisoned is forgotten.
    ASAN_UNPOISON_MEMORY_REGION(bottom_, size_);
    sanitizer_ = nullptr;
#endif
#if SIM_UCONTEXT
    getcontext(&context_);
    context_.uc_stack.ss_sp = const_cast<void*>(bottom_);
    context_.uc_stack.ss_size = size_;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#else
    std::byte* top = stack_ + stack_bytes_;
    const auto address = reinterpret_cast<std::uintptr_t>(entry);
#if defined(__x86_64__)
    // After the six registers and the jump, the stack pointer must be 8 past a multiple of 16, as after a call.
    std::byte* frame = top - 64;
    std::memset(frame, 0, 64);
    std::memcpy(frame + 48, &address, sizeof address);
#else
    std::byte* frame = top - 160;
    std::memset(frame, 0, 160);
    std::memcpy(frame + 88, &address, sizeof address);  // x30
#endif
    stack_pointer_ = frame;
#endif
}

void Fiber::switch_from(Fiber& from, Fiber& to, [[maybe_unused]] bool last) {
    switching_from = &from;
#if SIM_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &from.sanitizer_, to.bottom_, to.size_);
#endif
#if SIM_TSAN
    if (!from.stack_) from.sanitizer_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.sanitizer_, __tsan_switch_to_fiber_no_sync);
#endif
#if SIM_UCONTEXT
    swapcontext(&from.context_, &to.context_);
#else
    sim_switch(&from.stack_pointer_, to.stack_pointer_);
#endif
#if SIM_ASAN
    Fiber* before = switching_from;
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(from.sanitizer_, &bottom, &size);
    if (!before->stack_) before->bottom_ = bottom, before->size_ = size;
#endif
}

void Fiber::entered() {
#if SIM_ASAN
    Fiber* before = switching_from;
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (!before->stack_) before->bottom_ = bottom, before->size_ = size;
#endif
}

}  // namespace sim
