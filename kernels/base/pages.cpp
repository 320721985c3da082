#include "kernels/base/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace keel {

Pages::Pages(std::int64_t bytes) {
    mapped_ = (std::max<std::int64_t>(bytes, 1) + page_bytes - 1) / page_bytes * page_bytes;
    // One page more than needed, so that an aligned piece can be cut out; the rest goes back.
    const auto size = static_cast<std::size_t>(mapped_ + page_bytes);
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    auto* begin = static_cast<std::byte*>(p);
    const auto head = static_cast<std::size_t>(-reinterpret_cast<std::intptr_t>(begin) & (page_bytes - 1));
    data_ = begin + head;
    if (head > 0) munmap(begin, head);
    if (const std::size_t tail = static_cast<std::size_t>(page_bytes) - head; tail > 0) munmap(data_ + mapped_, tail);
    madvise(data_, static_cast<std::size_t>(mapped_), MADV_HUGEPAGE);
}

Pages::~Pages() {
    if (data_) munmap(data_, static_cast<std::size_t>(mapped_));
}

}  // namespace keel
