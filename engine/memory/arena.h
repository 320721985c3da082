// engine/memory/arena.h: the one allocation behind a MemoryPlan, on the host or on a GPU. Owns the bytes; Views into it live
// as long as it does, and those of a GPU are for ops alone.
//
// Pages of the host are touched at construction, by the threads that will use them: first touch is slow (0.35-2.5 GB/s on
// virtual machines), and a step must not meet it. Fresh memory is zero.
#pragma once

#include <cstddef>

#include "engine/memory/backend.h"
#include "engine/memory/plan.h"
#include "kernels/base/pages.h"
#include "kernels/base/stream.h"

namespace keel {

class Arena {
public:
    // Throws Error with the plan's table and the flags that would lower it if the machine cannot give so much.
    Arena(const MemoryPlan& plan, const Backend& backend);
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    std::int64_t bytes() const { return bytes_; }

    template <class T> View<T> view(const Reserved<T>& r) const {
        T* p = reinterpret_cast<T*>(data_ + offset(r.index));
        switch (r.rank) {
            case 1: return View<T>(p, {r.dims[0]});
            case 2: return View<T>(p, {r.dims[0], r.dims[1]});
            case 3: return View<T>(p, {r.dims[0], r.dims[1], r.dims[2]});
            default: return View<T>(p, {r.dims[0], r.dims[1], r.dims[2], r.dims[3]});
        }
    }

private:
    std::int64_t offset(int index) const;

    const MemoryPlan& plan_;  // whoever owns the Arena owns the plan too, and longer
    std::int64_t bytes_;
    Gpu* gpu_;         // where the bytes lie, if not on the host
    Pages pages_;      // of the host
    std::byte* data_;
};

}  // namespace keel
