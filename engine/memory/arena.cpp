#include "engine/memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace keel {
namespace {

constexpr std::int64_t huge_page = 2 << 20;

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

Arena::Arena(const MemoryPlan& plan, Stream& stream) : plan_(plan), bytes_(plan.peak_bytes()), base_(nullptr) {
    const std::int64_t mapped = std::max<std::int64_t>(huge_page, (bytes_ + huge_page - 1) / huge_page * huge_page);
    const std::int64_t available = available_memory_bytes();
    void* p = available > 0 && mapped > available
                  ? MAP_FAILED
                  : mmap(nullptr, static_cast<std::size_t>(mapped), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        fail("this run needs ", human_bytes(bytes_), " and the machine has ", human_bytes(available),
             " left.\n", plan.table(),
             "Lower --train.micro_batch, --data.seq_len or --memory.head_chunk, or raise --memory.recompute "
             "(none, swiglu, norms, attention, block).");
    base_ = static_cast<std::byte*>(p);
    madvise(base_, static_cast<std::size_t>(mapped), MADV_HUGEPAGE);
    stream.parallel(mapped / huge_page,
                    [&](std::int64_t tile, int) { std::memset(base_ + tile * huge_page, 0, huge_page); });
}

Arena::~Arena() {
    const std::int64_t mapped = std::max<std::int64_t>(huge_page, (bytes_ + huge_page - 1) / huge_page * huge_page);
    munmap(base_, static_cast<std::size_t>(mapped));
}

std::int64_t Arena::offset(int index) const {
    if (index < 0 || index >= static_cast<int>(plan_.items().size())) fail("Arena: reservation ", index, " is not of this plan");
    const MemoryPlan::Item& item = plan_.items()[static_cast<std::size_t>(index)];
    if (item.offset < 0 || item.offset + item.bytes > bytes_)
        fail("Arena: ", item.name, " was reserved after the plan was assigned");
    return item.offset;
}

}  // namespace keel
