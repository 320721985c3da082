// tests/comm/on_gpus.h: ranks that are threads with a simulated GPU each, what they bring in its memory, and NCCL cudasim's.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "comm/nccl.h"
#include "comm/threads.h"
#include "kernels/cudasim/config.h"
#include "kernels/cudasim/findings.h"
#include "kernels/cudasim/memory.h"
#include "kernels/cudasim/runtime.h"
#include "tests/comm/suite.h"

namespace keel::nccl_test {

class GpuMemory final : public std::pmr::memory_resource {
    void* do_allocate(std::size_t bytes, std::size_t) override { return sim::allocate_device(bytes); }
    void do_deallocate(void* data, std::size_t, std::size_t) override { EXPECT_TRUE(sim::release_device(data)); }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

inline std::shared_ptr<Stream> gpu_stream(int) {
    sim::cuda::cudaStream_t native = nullptr;
    sim::cuda::cudaStreamCreateWithFlags(&native, sim::cuda::cudaStreamNonBlocking);
    const auto wait = [](void* s) { sim::cuda::cudaStreamSynchronize(static_cast<sim::cuda::cudaStream_t>(s)); };
    return {new Stream(Device::cudasim, native, wait), [native](Stream* stream) {
                delete stream;
                sim::cuda::cudaStreamDestroy(native);
            }};
}

struct Way {
    const char* name;
    sim::Streams streams;
    NcclOptions options;
    std::vector<int> ranks;
};
inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }
// Buffers of the least size: sums go round after round. Deferred: nothing happens before somebody waits.
inline const Way ways[] = {{"Immediate", sim::Streams::immediate, {}, {1, 5}},
                           {"Deferred", sim::Streams::deferred, {.buffer_bytes = 1}, {3}},
                           {"Staged", sim::Streams::deferred, {.buffer_bytes = 1, .direct = false}, {2}}};
inline const Way &immediate = ways[0], &deferred = ways[1], &staged = ways[2];

// GPUs behave in that way, and hold what the suite's ranks bring, while it lives.
class OnGpus {
public:
    explicit OnGpus(const Way& way) : options_(way.options), before_(sim::config()) {
        sim::Config config = before_;
        config.streams = way.streams;
        sim::configure(config);
        (void)sim::take_findings();
        std::pmr::set_default_resource(&memory_);
        comm_suite::make_stream = gpu_stream;
        comm_suite::begin_thread = [](int rank) { sim::cuda::cudaSetDevice(rank); };
    }
    ~OnGpus() {
        std::pmr::set_default_resource(nullptr);
        comm_suite::make_stream = [](int threads) { return std::make_shared<Stream>(threads, 64, 64); };
        comm_suite::begin_thread = [](int) {};
        sim::configure(before_);
        for (const sim::Finding& finding : sim::take_findings()) ADD_FAILURE() << finding.text;
    }
    void run(int ranks, double deadline_s, const std::function<void(World&)>& body) const {
        run_threads(ranks, {.deadline_s = deadline_s}, [&](World& world) {
            const auto gpus = nccl_world(world, Device::cudasim, world.rank(), options_);
            body(*gpus);
        });
    }

private:
    NcclOptions options_;
    sim::Config before_;
    GpuMemory memory_;
};

// What body throws on any rank of two, each on a GPU; `options` of their world.
inline std::string error_of(const NcclOptions& options, double deadline_s, const std::function<void(World& control, World& gpus)>& body) {
    try {
        run_threads(2, {.deadline_s = deadline_s}, [&](World& control) {
            const auto gpus = nccl_world(control, Device::cudasim, control.rank(), options);
            body(control, *gpus);
        });
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

}  // namespace keel::nccl_test
