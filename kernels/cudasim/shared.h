// kernels/cudasim/shared.h: the shared memory of one block: pieces with red zones around them, poisoned when the block
// starts.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/cudasim/config.h"
#include "kernels/cudasim/findings.h"

namespace sim {

class Shared {
public:
    static constexpr std::size_t static_limit = 48 << 10, optin_limit = 227 << 10;  // bytes a block may have

    void begin(std::size_t dynamic_bytes, Poison poison);
    // The array of one declaration: the same for every thread of the block. `tag` tells declarations apart. Null if a kernel may
    // not declare as much, or not beside its dynamic memory in a block of `limit` bytes.
    void* array(const void* tag, std::size_t bytes, std::size_t align, std::size_t limit, const Site& site, const char* name);
    void* dynamic() const { return pieces_[0].data; }
    // Whether these bytes lie in one array of shared memory.
    bool contains(const void* address, std::size_t bytes) const;
    // How far `address` is from the start of the arena, or -1: what a 32-bit shared address is on a GPU.
    std::ptrdiff_t offset(const void* address) const;
    void* at(std::ptrdiff_t offset) const { return memory_.get() + offset; }
    // What bulk copies and operands of wgmma see (the asynchronous proxy): what bulk copies wrote, and what anybody had
    // written at the last publish(), which is fence.proxy.async. A fence of one thread counts for all: more than that
    // cannot be told without watching every store.
    void publish();
    void wrote_async(const void* address, std::size_t bytes);
    bool seen_async(const void* address, std::size_t bytes);  // whether that is what lies there now
    // Text that names the pieces whose red zones were written, or nothing.
    std::string damage() const;
    std::size_t static_bytes() const { return static_bytes_; }
    std::size_t dynamic_bytes() const { return pieces_[0].bytes; }

private:
    struct Piece {
        std::byte* data;
        std::size_t bytes;
        const void* tag;
        std::string name;
    };
    std::byte* carve(std::size_t bytes, std::size_t align);
    std::byte* seen(const void* address);

    struct Release {
        void operator()(std::byte* memory) const;
    };
    std::unique_ptr<std::byte, Release> memory_;
    std::unique_ptr<std::byte[]> seen_;  // as the asynchronous proxy sees the arena; kept up once it is asked for
    bool watching_ = false;
    std::size_t used_ = 0, static_bytes_ = 0;
    std::vector<Piece> pieces_;  // the dynamic one first
    Poison poison_ = Poison::nan;
};

// Fills memory with poison, or with the pattern of a red zone (NaN too, or finite; another one, so that damage shows).
void fill_poison(void* memory, std::size_t bytes, Poison poison);
void fill_red_zone(void* memory, std::size_t bytes, Poison poison);
bool red_zone_intact(const void* memory, std::size_t bytes, Poison poison);

}  // namespace sim
