#include "kernels/cudasim/shared.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#include "kernels/cudasim/sanitizers.h"

namespace sim {
namespace {

constexpr std::size_t arena_bytes = 1 << 20, red_zone_bytes = 256;

// A NaN as float, as bf16, and as double; 1.3e7 as float and bf16.
constexpr std::uint8_t poison_byte(Poison poison) { return poison == Poison::nan ? 0xff : 0x4b; }
constexpr std::uint16_t red_zone_pattern(Poison poison) { return poison == Poison::nan ? 0xffc1 : 0x4b1d; }

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

void fill_poison(void* memory, std::size_t bytes, Poison poison) { std::memset(memory, poison_byte(poison), bytes); }

void fill_red_zone(void* memory, std::size_t bytes, Poison poison) {
    const std::uint16_t pattern = red_zone_pattern(poison);
    for (std::size_t i = 0; i + 2 <= bytes; i += 2) std::memcpy(static_cast<std::byte*>(memory) + i, &pattern, 2);
}

bool red_zone_intact(const void* memory, std::size_t bytes, Poison poison) {
    const auto* zone = static_cast<const std::byte*>(memory);
    const std::uint16_t pattern = red_zone_pattern(poison);
    // Equal to itself one element on, and the first is right.
    return std::memcmp(zone, &pattern, 2) == 0 && std::memcmp(zone, zone + 2, bytes - 2) == 0;
}

void Shared::Release::operator()(std::byte* memory) const {
    unpoison_region(memory, arena_bytes);
    munmap(memory, arena_bytes);
}

void Shared::begin(std::size_t dynamic_bytes, Poison poison) {
#if SIM_TSAN
    // Fresh memory, as the sanitizer sees it: what the last block did here is no race with this one, and its atomics order nothing.
    memory_.reset();
#endif
    if (!memory_) {
        void* memory = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        memory_.reset(static_cast<std::byte*>(memory));
    }
    unpoison_region(memory_.get(), arena_bytes);
    {
        const IgnoreRaces names_were_made_by_threads;
        pieces_.clear();
    }
    watching_ = false;
    used_ = static_bytes_ = 0;
    poison_ = poison;
    std::byte* data = carve(dynamic_bytes, 1024);
    pieces_.push_back({data, dynamic_bytes, nullptr, "dynamic shared memory"});
}

// Red zone, piece, red zone; what is between the end of a piece and the next multiple of two belongs to neither.
std::byte* Shared::carve(std::size_t bytes, std::size_t align) {
    const std::size_t start = round_up(used_ + red_zone_bytes, align);
    const std::size_t end = start + round_up(bytes, 2);
    if (end + red_zone_bytes > arena_bytes) throw std::bad_alloc();
    std::byte* data = memory_.get() + start;
    fill_red_zone(data - red_zone_bytes, red_zone_bytes, poison_);
    fill_poison(data, bytes, poison_);
    fill_red_zone(memory_.get() + end, red_zone_bytes, poison_);
    poison_region(data - red_zone_bytes, red_zone_bytes);
    poison_region(data + bytes, end - start - bytes + red_zone_bytes);
    used_ = end + red_zone_bytes;
    return data;
}

void* Shared::array(const void* tag, std::size_t bytes, std::size_t align, std::size_t limit, const Site& site,
                    const char* name) {
    for (std::size_t i = 1; i < pieces_.size(); ++i)
        if (pieces_[i].tag == tag) return pieces_[i].data;
    if (static_bytes_ + bytes > static_limit || static_bytes_ + bytes + dynamic_bytes() > limit) return nullptr;
    const IgnoreRaces the_first_thread_makes_it_for_all;
    static_bytes_ += bytes;
    std::byte* data = carve(bytes, align);
    pieces_.push_back({data, bytes, tag, std::string(name) + " of " + where(site)});
    if (watching_) fill_poison(seen(data), bytes, poison_);
    return data;
}

std::byte* Shared::seen(const void* address) {
    if (!watching_) {
        if (!seen_) seen_ = std::make_unique<std::byte[]>(arena_bytes);
        watching_ = true;
        for (const Piece& piece : pieces_) fill_poison(seen(piece.data), piece.bytes, poison_);
    }
    return seen_.get() + offset(address);
}
void Shared::publish() {
    const IgnoreRaces a_fence_reads_nothing;
    for (const Piece& piece : pieces_) std::memcpy(seen(piece.data), piece.data, piece.bytes);
}
void Shared::wrote_async(const void* address, std::size_t bytes) { std::memcpy(seen(address), address, bytes); }
bool Shared::seen_async(const void* address, std::size_t bytes) {
    return std::memcmp(seen(address), address, bytes) == 0;
}

bool Shared::contains(const void* address, std::size_t bytes) const {
    const auto* p = static_cast<const std::byte*>(address);
    for (const Piece& piece : pieces_)
        if (p >= piece.data && p + bytes <= piece.data + piece.bytes) return true;
    return false;
}

std::ptrdiff_t Shared::offset(const void* address) const {
    const auto* p = static_cast<const std::byte*>(address);
    return p >= memory_.get() && p < memory_.get() + arena_bytes ? p - memory_.get() : -1;
}

std::string Shared::damage() const {
    std::string text;
    unpoison_region(memory_.get(), arena_bytes);
    for (const Piece& piece : pieces_) {
        const bool below = red_zone_intact(piece.data - red_zone_bytes, red_zone_bytes, poison_);
        const bool above = red_zone_intact(piece.data + round_up(piece.bytes, 2), red_zone_bytes, poison_);
        if (below && above) continue;
        text += (text.empty() ? "" : ", and ") + std::string(below ? "past the end of " : "before ") + piece.name +
                " (" + std::to_string(piece.bytes) + " bytes)";
    }
    return text;
}

}  // namespace sim
