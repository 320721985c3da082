// kernels/cudasim/sanitizers.h: what the model tells the address and thread sanitizers, and nothing without them.
#pragma once

#include <cstddef>

#include "kernels/cudasim/fiber.h"

#if SIM_ASAN
#include <sanitizer/asan_interface.h>
#endif
#if SIM_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace sim {

inline void poison_region([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if SIM_ASAN
    ASAN_POISON_MEMORY_REGION(p, bytes);
#endif
}
inline void unpoison_region([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if SIM_ASAN
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#endif
}

// What happened before a release of an address happens before what follows an acquire of it.
inline void happens_before([[maybe_unused]] const void* address) {
#if SIM_TSAN
    __tsan_release(const_cast<void*>(address));
#endif
}
inline void happens_after([[maybe_unused]] const void* address) {
#if SIM_TSAN
    __tsan_acquire(const_cast<void*>(address));
#endif
}

// Between the two, what the calling thread reads and writes takes part in no race: a collective is done by one lane for
// all, and orders nothing between them; and what the model allocates in passing is its own.
inline void ignore_races() {
#if SIM_TSAN
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
}
inline void heed_races() {
#if SIM_TSAN
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
}

struct IgnoreRaces {
    IgnoreRaces() { ignore_races(); }
    ~IgnoreRaces() { heed_races(); }
    IgnoreRaces(const IgnoreRaces&) = delete;
    IgnoreRaces& operator=(const IgnoreRaces&) = delete;
};

}  // namespace sim
