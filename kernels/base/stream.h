// kernels/base/stream.h: an ordered queue of work on one device. On the CPU it is a fixed crew of threads.
//
// `parallel` cuts work into tiles. The number of tiles and what each computes may depend on shapes only, never on
// threads(): that is how any number of threads gives the same bits. Tiles are taken dynamically, so a busy neighbour
// slows one tile, not half of the work. Calls on one Stream come from one thread. Nothing here allocates after the
// constructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace keel {

enum class Device : std::uint8_t { cpu };

// Processors this process may run on (sched_getaffinity), at least 1.
int available_cpus();

class Stream {
public:
    // threads = 0 takes available_cpus(). Every thread gets `workspace_bytes` of scratch, and all together get
    // `shared_bytes`, both 64-byte aligned.
    static constexpr std::int64_t default_workspace_bytes = 4 << 20, default_shared_bytes = 8 << 20;
    static constexpr int max_threads = 1024;
    explicit Stream(int threads = 0, std::int64_t workspace_bytes = default_workspace_bytes,
                    std::int64_t shared_bytes = default_shared_bytes);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    Device device() const { return Device::cpu; }
    int threads() const;
    std::int64_t workspace_bytes() const;         // per thread
    std::byte* workspace(int thread) const;       // scratch of one thread, for the length of one tile
    std::int64_t shared_bytes() const;
    std::byte* shared_workspace() const;          // scratch of one op: one `parallel` fills it, the next one reads it

    // Calls body(tile, thread) for every tile in [0, tiles), and returns when all are done. The first exception of a
    // tile is rethrown here.
    template <class Body> void parallel(std::int64_t tiles, Body&& body) {
        using B = std::remove_reference_t<Body>;
        run(tiles, [](void* b, std::int64_t tile, int thread) { (*static_cast<B*>(b))(tile, thread); },
            const_cast<void*>(static_cast<const void*>(&body)));
    }

    // Everything queued is done afterwards. On the CPU it always is.
    void synchronize() {}

private:
    using Call = void (*)(void* body, std::int64_t tile, int thread);
    void run(std::int64_t tiles, Call call, void* body);

    struct Crew;
    std::unique_ptr<Crew> crew_;
};

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace keel
