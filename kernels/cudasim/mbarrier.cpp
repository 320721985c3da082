#include "kernels/cudasim/mbarrier.h"

#include <algorithm>

#include "kernels/cudasim/block.h"
#include "kernels/cudasim/sanitizers.h"

namespace sim {
namespace {

constexpr std::uint64_t mark = 0x6261727269657273u;  // what the 8 bytes of an mbarrier hold here
constexpr unsigned most_arrivals = (1u << 20) - 1;
constexpr std::int64_t most_bytes = (1 << 20) - 1;

// Arrivals happen before what follows a wait for the phase they complete: one address for even phases, one for odd. They are the
// object's own, in shared memory, which the thread sanitizer forgets with its block.
const void* edge(const std::uint64_t* at, unsigned phase) { return reinterpret_cast<const std::byte*>(at) + phase % 2; }

}  // namespace

Mbarriers::One* Mbarriers::find(const void* address) {
    const auto at = std::find_if(all_.begin(), all_.end(), [=](const One& one) { return one.at == address; });
    return at == all_.end() ? nullptr : &*at;
}

Mbarriers::One& Mbarriers::checked(Block& block, const std::uint64_t* barrier, const char* what, const Site& site) {
    One* const one = find(barrier);
    if (!one)
        block.stop(Kind::mbarrier, block.who() + " " + what + " at " + where(site) +
                                       " on what is no mbarrier: it was " + "not initialised, or not yet");
    if (*barrier != mark)
        block.stop(Kind::mbarrier, block.who() + " " + what + " at " + where(site) + " on an mbarrier whose 8 bytes " +
                                       "were overwritten; it was initialised at " + where(one->made));
    return *one;
}

void Mbarriers::advance_if_over(Block& block, One& one) {
    if (one.pending > 0 || one.tx != 0) return;
    ++one.phase;
    one.pending = one.count;
    block.wake(one.at);
}

void Mbarriers::publish() {
    for (One& one : all_) one.published = true;
}

void Mbarriers::complete(Block& block, const std::uint64_t* barrier, std::int64_t bytes, const Site& site) {
    One& one = checked(block, barrier, "lets a bulk copy land", site);
    if (!one.published)
        block.stop(Kind::missing_fence, "the bulk copy of " + block.who() + " at " + where(site) +
                                            " may not see its mbarrier, which was initialised at " + where(one.made) +
                                            " without a fence.mbarrier_init after it");
    one.tx -= bytes;
    if (one.tx < -most_bytes)
        block.stop(Kind::mbarrier, std::to_string(-one.tx) +
                                       " bytes that nobody expected have landed at the mbarrier of " + where(one.made) +
                                       ", at last by the copy at " + where(site));
    advance_if_over(block, one);
}

std::string Mbarriers::text(const void* address) const {
    const auto at = std::find_if(all_.begin(), all_.end(), [=](const One& one) { return one.at == address; });
    if (at == all_.end()) return "";
    std::string text = " of the mbarrier initialised at " + where(at->made) + ", which is in a phase of parity " +
                       std::to_string(at->phase % 2) + " with " + std::to_string(at->count - at->pending) + " of " +
                       std::to_string(at->count) + " arrivals";
    if (at->tx > 0) text += " and " + std::to_string(at->tx) + " bytes missing";
    if (at->tx < 0) text += " and " + std::to_string(-at->tx) + " bytes more than expected";
    return text;
}

void mbarrier_init(std::uint64_t* barrier, unsigned count, const Site& site) {
    Block& block = Block::current();
    const auto initialises = [&] { return block.who() + " initialises an mbarrier at " + where(site); };
    if (reinterpret_cast<std::uintptr_t>(barrier) % 8 != 0)
        block.stop(Kind::misaligned, initialises() + " whose address is no multiple of 8");
    if (!block.shared().contains(barrier, sizeof *barrier))
        block.stop(Kind::out_of_bounds, initialises() + " outside of shared memory");
    if (count == 0 || count > most_arrivals)
        block.stop(Kind::mbarrier, initialises() + " for " + std::to_string(count) + " arrivals; it takes 1 to " +
                                       std::to_string(most_arrivals));
    Mbarriers& barriers = block.mbarriers();
    if (const auto* one = barriers.find(barrier))
        block.stop(Kind::mbarrier, initialises() + ", where one is already, initialised at " + where(one->made) +
                                       " and never invalidated");
    const IgnoreRaces the_counts_are_the_models;
    *barrier = mark;
    barriers.all_.push_back({barrier, count, count, 0, 0, false, site});
}

void mbarrier_invalidate(std::uint64_t* barrier, const Site& site) {
    Block& block = Block::current();
    auto& barriers = block.mbarriers();
    const Mbarriers::One& one = barriers.checked(block, barrier, "invalidates", site);
    const IgnoreRaces the_counts_are_the_models;
    std::erase_if(barriers.all_, [&](const Mbarriers::One& other) { return other.at == one.at; });
    *barrier = 0;
}

void mbarrier_arrive(std::uint64_t* barrier, std::int64_t bytes, bool arrive, const Site& site) {
    Block& block = Block::current();
    auto& barriers = block.mbarriers();
    Mbarriers::One& one = barriers.checked(block, barrier, arrive ? "arrives" : "expects bytes", site);
    one.tx += bytes;
    if (one.tx > most_bytes)
        block.stop(Kind::mbarrier, block.who() + " expects " + std::to_string(bytes) + " more bytes at " + where(site) +
                                       ", and with those before them they are more than " + std::to_string(most_bytes) +
                                       " in one phase");
    if (!arrive) return;
    if (one.pending == 0)
        block.stop(Kind::mbarrier, block.who() + " arrives at " + where(site) + " where all " +
                                       std::to_string(one.count) +
                                       " arrivals of the phase have been; its bytes have not");
    --one.pending;
    happens_before(edge(one.at, one.phase));
    barriers.advance_if_over(block, one);
}

bool mbarrier_wait(std::uint64_t* barrier, unsigned parity, const Site& site) {
    Block& block = Block::current();
    static constexpr const char* names[] = {"the phase of parity 0", "the phase of parity 1"};
    for (;;) {
        const Mbarriers::One& one = block.mbarriers().checked(block, barrier, "waits", site);
        if (one.phase % 2 != parity % 2) {
            happens_after(edge(one.at, one.phase + 1));
            return true;
        }
        block.wait_at(barrier, names[parity % 2], site);
    }
}

void fence_mbarrier_init() { Block::current().mbarriers().publish(); }

void fence_async() {
    Block::current().mbarriers().publish();
    Block::current().shared().publish();
}

}  // namespace sim
