#include "engine/memory/arena.h"

#include <cstdio>
#include <cstring>
#include <new>

namespace keel {
namespace {

// What the kernel says could still be had without swapping; 0 if it does not say.
std::int64_t available_memory_bytes() {
    std::FILE* f = std::fopen("/proc/meminfo", "r");
    if (!f) return 0;
    char line[128];
    long long kib = 0;
    while (std::fgets(line, sizeof line, f))
        if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
    std::fclose(f);
    return kib * 1024;
}

}  // namespace

Arena::Arena(const MemoryPlan& plan, Stream& stream) : plan_(plan), bytes_(plan.peak_bytes()) {
    const std::int64_t available = available_memory_bytes();
    try {
        if (available > 0 && bytes_ > available) throw std::bad_alloc();
        pages_ = Pages(bytes_);
    } catch (const std::bad_alloc&) {
        fail("this run needs ", human_bytes(bytes_), " and the machine has ", human_bytes(available),
             " left.\n", plan.table(),
             "Lower --train.micro_batch, --data.seq_len or --memory.head_chunk, or raise --memory.recompute "
             "(none, swiglu, norms, attention, block).");
    }
    stream.parallel(pages_.mapped_bytes() / Pages::page_bytes, [&](std::int64_t tile, int) {
        std::memset(pages_.data() + tile * Pages::page_bytes, 0, Pages::page_bytes);
    });
}

std::int64_t Arena::offset(int index) const {
    if (index < 0 || index >= static_cast<int>(plan_.items().size())) fail("Arena: reservation ", index, " is not of this plan");
    const MemoryPlan::Item& item = plan_.items()[static_cast<std::size_t>(index)];
    if (item.offset < 0 || item.offset + item.bytes > bytes_)
        fail("Arena: ", item.name, " was reserved after the plan was assigned");
    return item.offset;
}

}  // namespace keel
