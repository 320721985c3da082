#include "kernels/cudasim/bulk.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/cudasim/block.h"
#include "kernels/cudasim/memory.h"
#include "kernels/cudasim/sanitizers.h"

namespace sim {
namespace {

struct Box {
    Tiled tensor;
    std::int64_t at[Tiled::max_rank];
    std::ptrdiff_t shared;  // offset of its first byte in shared memory
};

// A copy that a GPU would refuse, or that would damage memory, ends the launch. The map is copied: a parameter of a
// kernel lies on the stack of its thread here.
Box checked(Block& block, const void* shared, const cuda::CUtensorMap* map, std::initializer_list<std::int32_t> at,
            const char* copies, const Site& site) {
    Box box{};
    std::memcpy(&box.tensor, map, sizeof box.tensor);
    const auto refuse = [&](Kind kind, const std::string& why) {
        block.stop(kind, block.who() + " " + copies + " a box of a tensor at " + where(site) + ": " + why);
    };
    if (box.tensor.magic != Tiled::known) refuse(Kind::bad_launch, "its map was never encoded");
    if (at.size() != box.tensor.rank)
        refuse(Kind::bad_launch,
               std::to_string(at.size()) + " coordinates, but its map has rank " + std::to_string(box.tensor.rank));
    std::copy(at.begin(), at.end(), box.at);
    box.shared = block.shared().offset(shared);
    if (box.shared < 0 || !block.shared().contains(shared, box.tensor.box_bytes()))
        refuse(Kind::out_of_bounds,
               "its " + std::to_string(box.tensor.box_bytes()) + " bytes do not lie in one array of shared memory");
    if (box.shared % 128 != 0) refuse(Kind::misaligned, "its place in shared memory is no multiple of 128 bytes");
    const Found found = find_allocation(box.tensor.data);
    if (found.place == Place::unknown || box.tensor.data + box.tensor.bytes() > found.data + found.bytes)
        refuse(Kind::out_of_bounds,
               "the tensor of " + std::to_string(box.tensor.bytes()) + " bytes does not lie in one allocation");
    return box;
}

// row(in shared memory, in the tensor or null, bytes of a piece) for every 16 bytes of the box, which lie together in
// both.
template <class Piece>
void for_pieces(Block& block, const Box& box, Piece&& piece) {
    const Tiled& t = box.tensor;
    const std::int64_t rows = static_cast<std::int64_t>(t.box_bytes()) / (t.box[0] * t.element_bytes);
    std::ptrdiff_t offset = box.shared;
    for (std::int64_t row = 0; row < rows; ++row) {
        std::int64_t rest = row;
        std::byte* from = t.data;
        bool inside = true;
        for (unsigned i = 1; i < t.rank; ++i) {
            const std::int64_t index = box.at[i] + rest % t.box[i];
            rest /= t.box[i];
            inside = inside && index >= 0 && index < static_cast<std::int64_t>(t.dims[i]);
            from += index * static_cast<std::int64_t>(t.strides[i - 1]);
        }
        for (unsigned byte = 0; byte < t.box[0] * t.element_bytes; byte += 16, offset += 16) {
            const std::int64_t first = box.at[0] * t.element_bytes + byte;
            const std::int64_t end = static_cast<std::int64_t>(t.dims[0]) * t.element_bytes;
            const std::int64_t skipped = std::clamp<std::int64_t>(-first, 0, 16);
            const std::int64_t stop = inside ? std::clamp<std::int64_t>(end - first, 0, 16) : 0;
            piece(static_cast<std::byte*>(block.shared().at(swizzled(offset, t.swizzle))), from + first, skipped, stop);
        }
    }
}

void land(Block& block, const Box& box, std::uint64_t* barrier, const Site& site) {
    for_pieces(block, box, [&](std::byte* shared, const std::byte* global, std::int64_t skipped, std::int64_t stop) {
        std::memset(shared, 0, 16);
        if (stop > skipped) std::memcpy(shared + skipped, global + skipped, static_cast<std::size_t>(stop - skipped));
        block.shared().wrote_async(shared, 16);
    });
    block.mbarriers().complete(block, barrier, static_cast<std::int64_t>(box.tensor.box_bytes()), site);
}

void store(Block& block, const Box& box) {
    for_pieces(block, box, [&](const std::byte* shared, std::byte* global, std::int64_t skipped, std::int64_t stop) {
        if (stop > skipped) std::memcpy(global + skipped, shared + skipped, static_cast<std::size_t>(stop - skipped));
    });
}

}  // namespace

void load_box(void* shared, const cuda::CUtensorMap* map, std::uint64_t* barrier,
              std::initializer_list<std::int32_t> at, const Site& site) {
    Block& block = Block::current();
    const Box box = checked(block, shared, map, at, "loads", site);
    ++block.counters().bulk_copies;
    block.counters().bulk_bytes += box.tensor.box_bytes();
    const IgnoreRaces the_proxy_is_no_thread;
    if (block.config().async == Async::early) {
        land(block, box, barrier, site);
        return;
    }
    for_pieces(block, box, [&](std::byte* piece, std::byte*, std::int64_t, std::int64_t) {
        fill_poison(piece, 16, block.config().poison);
        block.shared().wrote_async(piece, 16);
    });
    block.deferred().push_back({[=, &block] { land(block, box, barrier, site); }, site});
}

void store_box(const cuda::CUtensorMap* map, const void* shared, std::initializer_list<std::int32_t> at,
               const Site& site) {
    Block& block = Block::current();
    const Box box = checked(block, shared, map, at, "stores", site);
    ++block.counters().bulk_copies;
    block.counters().bulk_bytes += box.tensor.box_bytes();
    for_pieces(block, box, [&](const std::byte* piece, std::byte*, std::int64_t, std::int64_t) {
        if (!block.shared().seen_async(piece, 16))
            block.stop(Kind::missing_fence, "the store of a box by " + block.who() + " at " + where(site) +
                                                " may not see what was written to shared memory: no fence.proxy.async "
                                                "came after it");
    });
    const IgnoreRaces the_proxy_is_no_thread;
    Block::Stores& stores = block.stores();
    const bool early = block.config().async == Async::early;
    if (early) store(block, box);
    stores.queue.push_back({early ? std::function<void()>() : [=, &block] { store(block, box); }, site});
}

void commit_stores() {
    const IgnoreRaces the_queue_is_the_models;
    Block::Stores& stores = Block::current().stores();
    stores.groups.push_back(stores.queue.size());
}

void wait_stores(unsigned groups_left) {
    const IgnoreRaces the_queue_is_the_models;
    Block::Stores& stores = Block::current().stores();
    while (stores.groups.size() > groups_left) {
        const std::size_t count = stores.groups.front();
        for (std::size_t i = 0; i < count; ++i)
            if (stores.queue[i].run) stores.queue[i].run();
        stores.queue.erase(stores.queue.begin(), stores.queue.begin() + static_cast<std::ptrdiff_t>(count));
        stores.groups.erase(stores.groups.begin());
        for (std::size_t& end : stores.groups) end -= count;
    }
}

void Block::check_stores_over() {
    const Stores& stores = lanes_[running_].stores;
    if (!stores.queue.empty())
        report(Kind::missing_wait, who() + " left without waiting for " + std::to_string(stores.queue.size()) +
                                       " bulk stores, the first of them started at " +
                                       where(stores.queue.front().site));
}

}  // namespace sim
