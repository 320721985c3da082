#include "kernels/cudasim/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>

#include "kernels/cudasim/block.h"
#include "kernels/cudasim/counters.h"
#include "kernels/cudasim/sanitizers.h"
#include "kernels/cudasim/streams.h"

namespace sim {
namespace {

constexpr std::size_t page_bytes = 4096, red_zone_bytes = page_bytes, align = 256;

struct Allocation {
    std::size_t bytes;
    Place place;
    Poison poison;
    bool damaged;
    int device;
};

std::shared_mutex mutex;
std::map<std::byte*, Allocation> table;
std::atomic<unsigned> version{0};  // of the table: what a thread remembers of an older one is worth nothing
int open_memories = 0;
bool closed = false;  // to the host

std::size_t padded(std::size_t bytes) { return (bytes + align - 1) / align * align; }
std::size_t whole_pages(std::size_t bytes) {  // of an allocation with its zones
    return (padded(bytes) + 2 * red_zone_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

void close_device_memory(bool close) {
    for (const auto& [data, a] : table)
        if (a.place == Place::device)
            mprotect(data - red_zone_bytes, whole_pages(a.bytes), close ? PROT_NONE : PROT_READ | PROT_WRITE);
    closed = close;
}

void* allocate(std::size_t bytes, Place place) {
    auto* memory = static_cast<std::byte*>(
        ::operator new(whole_pages(bytes), std::align_val_t(page_bytes), std::nothrow));
    if (!memory) return nullptr;
    const Poison poison = config().poison;
    std::byte* data = memory + red_zone_bytes;
    fill_red_zone(memory, red_zone_bytes, poison);
    fill_poison(data, bytes, poison);
    // From the last byte to the end of the second zone; an odd size leaves one byte out.
    fill_red_zone(data + bytes + bytes % 2, padded(bytes) - bytes - bytes % 2 + red_zone_bytes, poison);
    poison_region(memory, red_zone_bytes);
    poison_region(data + bytes, padded(bytes) - bytes + red_zone_bytes);
    const std::unique_lock lock(mutex);
    table[data] = {bytes, place, poison, false, current_device()};
    add_counters({.allocations = 1});
    ++version;
    return data;
}

bool release(void* data, Place place) {
    if (!data) return true;
    const std::unique_lock lock(mutex);
    const auto at = table.find(static_cast<std::byte*>(data));
    if (at == table.end() || at->second.place != place) return false;
    if (closed) close_device_memory(false);
    unpoison_region(at->first - red_zone_bytes, padded(at->second.bytes) + 2 * red_zone_bytes);
    ::operator delete(at->first - red_zone_bytes, std::align_val_t(page_bytes));
    table.erase(at);
    ++version;
    return true;
}

Found find_locked(const void* address) {
    auto* p = static_cast<std::byte*>(const_cast<void*>(address));
    auto at = table.upper_bound(p);
    if (at == table.begin()) return {};
    --at;
    if (p > at->first + at->second.bytes || (p == at->first + at->second.bytes && at->second.bytes > 0)) return {};
    return {at->second.place, at->first, at->second.bytes, at->second.device};
}

// The nearest allocation below tells by how far. Its own function, because a lock held where a block stops is held for
// ever.
std::string how_far_past(const std::byte* p) {
    const std::shared_lock lock(mutex);
    auto at = table.upper_bound(const_cast<std::byte*>(p));
    if (at == table.begin()) return "";
    --at;
    const auto past = p - (at->first + at->second.bytes);
    if (past <= -16 || past >= static_cast<std::ptrdiff_t>(red_zone_bytes)) return "";
    return ", " + std::to_string(past) + " bytes past the end of one of " + std::to_string(at->second.bytes);
}

}  // namespace

void* allocate_device(std::size_t bytes) { return allocate(bytes, Place::device); }
void* allocate_pinned(std::size_t bytes) { return allocate(bytes, Place::pinned); }
bool release_device(void* data) { return release(data, Place::device); }
bool release_pinned(void* data) { return release(data, Place::pinned); }

OpenMemory::OpenMemory() {
    const std::unique_lock lock(mutex);
    if (open_memories++ == 0 && closed) close_device_memory(false);
}
OpenMemory::~OpenMemory() {
    const std::unique_lock lock(mutex);
    if (--open_memories == 0 && config().host_faults) close_device_memory(true);
}

std::size_t device_bytes() {
    const std::shared_lock lock(mutex);
    std::size_t sum = 0;
    for (const auto& [data, allocation] : table) sum += allocation.place == Place::device ? allocation.bytes : 0;
    return sum;
}

Found find_allocation(const void* address) {
    const std::shared_lock lock(mutex);
    return find_locked(address);
}

void check_global(const void* address, std::size_t bytes, const Site& site) {
    thread_local Found last;
    thread_local unsigned last_version = ~0u;
    const auto* p = static_cast<const std::byte*>(address);
    Block& block = Block::current();
    if (reinterpret_cast<std::uintptr_t>(address) % (bytes & (~bytes + 1)) != 0)
        block.stop(Kind::misaligned, block.who() + " accesses " + std::to_string(bytes) +
                                         " bytes at an address that is no multiple of it, at " + where(site));
    if (block.shared().offset(address) >= 0) {
        if (block.shared().contains(address, bytes)) return;
        block.stop(Kind::out_of_bounds,
                   block.who() + " accesses shared memory outside of every array at " + where(site));
    }
    if (last_version != version || p < last.data || p + bytes > last.data + last.bytes) {
        last = find_allocation(address);
        last_version = version;
    }
    if (last.place != Place::unknown && p + bytes <= last.data + last.bytes) return;
    std::string text =
        block.who() + " accesses " + std::to_string(bytes) + " bytes outside of every allocation at " + where(site);
    text += how_far_past(p);
    block.stop(Kind::out_of_bounds, text);
}

void check_red_zones(const std::string& after) {
    const std::unique_lock lock(mutex);
    const bool was_closed = closed;  // where something is freed, nothing runs that would have opened it
    if (was_closed) close_device_memory(false);
    for (auto& [data, a] : table) {
        if (a.damaged) continue;
            // Sanitizers keep the zones themselves, and reading them would be a finding.
#if !SIM_ASAN
        const std::size_t odd = a.bytes % 2;
        const bool below = red_zone_intact(data - red_zone_bytes, red_zone_bytes, a.poison);
        const bool above =
            red_zone_intact(data + a.bytes + odd, padded(a.bytes) - a.bytes - odd + red_zone_bytes, a.poison);
        if (below && above) continue;
        a.damaged = true;
        report(Kind::out_of_bounds, after + " wrote " + (above ? "before" : "past the end of") + " an allocation of " +
                                        std::to_string(a.bytes) + " bytes");
#else
        (void)data;
        (void)after;
#endif
    }
    if (was_closed) close_device_memory(true);
}

}  // namespace sim
