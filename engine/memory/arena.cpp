#include "engine/memory/arena.h"

#include <cstring>
#include <new>
#include <optional>

#include "engine/memory/memory_left.h"

namespace keel {
namespace {

[[noreturn]] void refuse(const MemoryPlan& plan, std::optional<std::int64_t> left, const char* whose) {
    fail("this run needs ", human_bytes(plan.peak_bytes()), left ? " and may take " + human_bytes(*left) : "", whose, ".\n",
         plan.table(),
         "Lower --train.micro_batch, --data.seq_len or --memory.head_chunk, or raise --memory.recompute "
         "(none, swiglu, norms, attention, block).");
}

}  // namespace

Arena::Arena(const MemoryPlan& plan, const Backend& backend) : plan_(plan), bytes_(plan.peak_bytes()), gpu_(backend.gpu) {
    if (gpu_) {
        if (const std::int64_t left = gpu_->free_bytes(); bytes_ > left) refuse(plan, left, " of the GPU's memory");
        data_ = gpu_->allocate(bytes_);
        backend.zero(data_, bytes_);
        return;
    }
    const auto left = memory_left_bytes();
    try {
        if (left && bytes_ > *left) throw std::bad_alloc();
        pages_ = Pages(bytes_);
    } catch (const std::bad_alloc&) {
        refuse(plan, left, " (free memory, or the limit of its container or job)");
    }
    data_ = pages_.data();
    backend.stream.parallel(pages_.mapped_bytes() / Pages::page_bytes, [&](std::int64_t tile, int) {
        std::memset(data_ + tile * Pages::page_bytes, 0, Pages::page_bytes);
    });
}

Arena::~Arena() {
    if (gpu_) gpu_->release(data_);
}

std::int64_t Arena::offset(int index) const {
    if (index < 0 || index >= static_cast<int>(plan_.items().size())) fail("Arena: reservation ", index, " is not of this plan");
    const MemoryPlan::Item& item = plan_.items()[static_cast<std::size_t>(index)];
    if (item.offset < 0 || item.offset + item.bytes > bytes_)
        fail("Arena: ", item.name, " was reserved after the plan was assigned");
    return item.offset;
}

}  // namespace keel
