// kernels/base/stream.h: an ordered queue of work on one device. On the CPU it is a fixed crew of threads; on a GPU, real or
// simulated, it names a queue of the CUDA runtime.
//
// `parallel` cuts work into tiles, by shapes only: that is how any number of threads gives the same bits. (A product may cut
// by threads() too: its sums are one chain however it is cut, and a test compares 1 to 5 threads.) Tiles are taken dynamically, so a busy neighbour
// slows one tile, not half of the work. Calls on one Stream come from one thread. Nothing here allocates after the
// constructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

namespace keel {

enum class Device : std::uint8_t { cpu, cuda, cudasim };
constexpr std::string_view name(Device device) {
    return device == Device::cpu ? "cpu" : device == Device::cuda ? "cuda" : "cudasim";
}

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
    // A queue of a GPU. `native` is its cudaStream_t and outlives this object; `wait(native)` returns when all that was
    // queued is done. There is no crew and no workspace but what it is lent: `parallel` throws Error.
    Stream(Device device, void* native, void (*wait)(void* native));
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    Device device() const { return device_; }
    void* native() const { return native_; }      // of a GPU
    bool hopper() const { return hopper_; }       // whether ops may take kernels for sm_90a alone (kernels/hopper.h)
    void allow_hopper() { hopper_ = true; }
    int threads() const;
    std::int64_t workspace_bytes() const;         // per thread
    std::byte* workspace(int thread) const;       // scratch of one thread, for the length of one tile
    std::int64_t shared_bytes() const;
    std::byte* shared_workspace() const;          // scratch of one op: one `parallel` fills it, the next one reads it
    // Of a GPU's queue: memory of the GPU for shared_workspace, 256-byte aligned, this stream's alone, while the loan
    // lives, which is not as long as the memory or the stream. Throws Error if another's is lent.
    class Loan;
    [[nodiscard]] Loan lend(std::byte* data, std::int64_t bytes);

    // Calls body(tile, thread) for every tile in [0, tiles), and returns when all are done. The first exception of a
    // tile is rethrown here.
    template <class Body> void parallel(std::int64_t tiles, Body&& body) {
        using B = std::remove_reference_t<Body>;
        run(tiles, [](void* b, std::int64_t tile, int thread) { (*static_cast<B*>(b))(tile, thread); },
            const_cast<void*>(static_cast<const void*>(&body)));
    }

    // Everything queued is done afterwards. On the CPU it always is.
    void synchronize() {
        if (wait_) wait_(native_);
    }

private:
    using Call = void (*)(void* body, std::int64_t tile, int thread);
    void run(std::int64_t tiles, Call call, void* body);

    struct Crew;
    std::unique_ptr<Crew> crew_;  // of the CPU
    Device device_ = Device::cpu;
    void* native_ = nullptr;
    bool hopper_ = false;
    std::byte* lent_ = nullptr;
    std::int64_t lent_bytes_ = 0;
    void (*wait_)(void*) = nullptr;
};

// Takes back what was lent, once; one that is made without a stream lends nothing.
class Stream::Loan {
public:
    Loan() = default;
    Loan(Loan&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
    Loan& operator=(Loan other) noexcept {
        std::swap(stream_, other.stream_);
        return *this;
    }
    ~Loan() {
        if (stream_) stream_->lent_ = nullptr, stream_->lent_bytes_ = 0;
    }

private:
    friend class Stream;
    explicit Loan(Stream* stream) : stream_(stream) {}
    Stream* stream_ = nullptr;
};

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace keel
