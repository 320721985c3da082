#include "engine/memory/arena.h"

#include <cstring>
#include <new>

#include "engine/memory/memory_left.h"

namespace keel {
Arena::Arena(const MemoryPlan& plan, Stream& stream) : plan_(plan), bytes_(plan.peak_bytes()) {
    const auto left = memory_left_bytes();
    try {
        if (left && bytes_ > *left) throw std::bad_alloc();
        pages_ = Pages(bytes_);
    } catch (const std::bad_alloc&) {
        fail("this run needs ", human_bytes(bytes_), left ? " and may take " + human_bytes(*left) : "",
             " (free memory, or the limit of its container or job).\n", plan.table(),
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
