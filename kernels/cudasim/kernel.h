// kernels/cudasim/kernel.h: what macros and wrappers of kernels need of the model: shared memory and checked accesses.
#pragma once

#include "kernels/cudasim/block.h"
#include "kernels/cudasim/memory.h"

namespace sim {

template <class Array>
Array& shared_array(const void* tag, const char* name, Site site = Site::current()) {
    Block& block = Block::current();
    void* const data = block.shared().array(tag, sizeof(Array), alignof(Array), block.shared_limit(), site, name);
    if (!data) block.stop_for_shared(sizeof(Array), name, site);
    return *static_cast<Array*>(data);
}
inline void* dynamic_shared() { return Block::current().shared().dynamic(); }

template <class T>
T checked_load(const T* p, const Site& site) {
    check_global(p, sizeof(T), site);
    return *p;
}
template <class T>
void checked_store(T* p, const T& value, const Site& site) {
    check_global(p, sizeof(T), site);
    *p = value;
}

}  // namespace sim
