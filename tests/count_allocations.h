// tests/count_allocations.h: counts every heap allocation of a test program, on every thread, C and C++ alike.
// Include it in one source file of the program. Under a sanitizer its own hook counts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>

namespace keel {

inline std::atomic<long> allocation_count{0};
inline std::atomic<bool (*)()> not_counted{nullptr};  // true for what the calling thread allocates on another's behalf
inline long allocations() { return allocation_count.load(std::memory_order_relaxed); }
inline void count_allocation() {
    const auto excused = not_counted.load(std::memory_order_relaxed);
    if (!excused || !excused()) allocation_count.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace keel

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" void __sanitizer_malloc_hook(const volatile void*, std::size_t) {
    keel::count_allocation();
}
extern "C" void __sanitizer_free_hook(const volatile void*) {}
#else
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) {
    keel::count_allocation();
    return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
    keel::count_allocation();
    return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
    keel::count_allocation();
    return __libc_realloc(p, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
    keel::count_allocation();
    return __libc_memalign(alignment, n);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t n) {
    keel::count_allocation();
    *out = __libc_memalign(alignment, n);
    return *out ? 0 : 12;  // ENOMEM
}
}
#endif
