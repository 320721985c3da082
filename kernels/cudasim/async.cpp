#include "kernels/cudasim/async.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "kernels/cudasim/block.h"
#include "kernels/cudasim/memory.h"
#include "kernels/cudasim/sanitizers.h"

namespace sim {
namespace {

void land(const Block::Copy& copy) {
    if (copy.bytes == 0) return;  // an early one
    if (copy.bytes > copy.zeros) std::memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
    std::memset(static_cast<std::byte*>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
}

void land_first(Block::Copies& copies, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) land(copies.queue[i]);
    const IgnoreRaces the_queue_is_the_models;  // what lands is the thread's
    copies.queue.erase(copies.queue.begin(), copies.queue.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace

void copy_async(void* shared, const void* global, unsigned bytes, unsigned zeros, const Site& site) {
    Block& block = Block::current();
    const auto misaligned = [&](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % bytes != 0; };
    if (misaligned(shared) || (zeros < bytes && misaligned(global)))
        block.stop(Kind::misaligned, block.who() + " copies " + std::to_string(bytes) +
                                         " bytes to or from an address that is no "
                                         "multiple of it, at " +
                                         where(site));
    if (!block.shared().contains(shared, bytes))
        block.stop(Kind::out_of_bounds, block.who() + " copies to outside of shared memory at " + where(site));
    if (zeros < bytes) check_global(global, bytes - zeros, site);
    Block::Copy copy{shared, global, bytes, zeros, site};
    if (block.config().async == Async::early) {
        land(copy);
        copy.bytes = 0;  // nothing is left to do, but it must still be waited for
    } else {
        fill_poison(shared, bytes, block.config().poison);
    }
    const IgnoreRaces the_queue_is_the_models;
    block.copies().queue.push_back(copy);
    ++block.copies().open;
    block.counters().copied_bytes += bytes;
}

void commit_copies() {
    const IgnoreRaces the_queue_is_the_models;
    Block::Copies& copies = Block::current().copies();
    copies.groups.push_back(copies.open);
    copies.open = 0;
}

void wait_copies(unsigned groups_left) {
    Block::Copies& copies = Block::current().copies();
    while (copies.groups.size() > groups_left) {
        land_first(copies, copies.groups.front());
        const IgnoreRaces the_queue_is_the_models;
        copies.groups.erase(copies.groups.begin());
    }
}

void wait_all_copies() {
    Block::Copies& copies = Block::current().copies();
    land_first(copies, copies.queue.size());
    copies.groups.clear();
    copies.open = 0;
}

// What the running thread started and never waited for. It may have been overwritten or never used: a mistake either
// way.
void Block::check_copies_over() {
    const Copies& copies = lanes_[running_].copies;
    if (!copies.queue.empty())
        report(Kind::missing_wait, who() + " left without waiting for " + std::to_string(copies.queue.size()) +
                                       " asynchronous copies, the first of them started at " +
                                       where(copies.queue.front().site));
}

}  // namespace sim
