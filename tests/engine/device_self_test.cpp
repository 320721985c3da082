// The self-test of a GPU, simulated here: passes on one that computes and remembers rightly, and says what one did that does not.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "engine/fault/device_test.h"
#include "kernels/base/error.h"
#include "kernels/cudasim/findings.h"

namespace keel {
namespace {

// A simulated GPU that does what is asked of it, but for what a test does to what comes in or goes out.
class FaultyGpu : public Gpu {
public:
    using Fault = std::function<void(std::byte* data, std::int64_t bytes)>;
    FaultyGpu() : gpu_(open_gpu(Device::cudasim)) {}

    Fault on_copy_in, on_copy_out;
    int copies_out = 0;
    std::int64_t held = 0;  // allocations

    Device device() const override { return gpu_->device(); }
    std::string name() const override { return "a GPU of the test"; }
    std::string describe() const override { return name(); }
    std::string kernels() const override { return gpu_->kernels(); }
    std::string libraries() const override { return gpu_->libraries(); }
    std::string bus_id() const override { return "0000:3b:00.0"; }
    std::int64_t free_bytes() const override { return gpu_->free_bytes(); }
    std::unique_ptr<Stream> make_stream() override { return gpu_->make_stream(); }
    std::byte* allocate(std::int64_t bytes) override { return ++held, gpu_->allocate(bytes); }
    void release(std::byte* data) override { --held, gpu_->release(data); }
    std::byte* allocate_pinned(std::int64_t bytes) override { return gpu_->allocate_pinned(bytes); }
    void release_pinned(std::byte* data) override { gpu_->release_pinned(data); }
    void copy_in(Stream& stream, void* to, const void* from, std::int64_t bytes) override {
        std::vector<std::byte> data(static_cast<std::size_t>(bytes));
        std::memcpy(data.data(), from, data.size());
        if (on_copy_in) on_copy_in(data.data(), bytes);
        gpu_->copy_in(stream, to, data.data(), bytes);
        stream.synchronize();
    }
    void copy_out(Stream& stream, void* to, const void* from, std::int64_t bytes) override {
        gpu_->copy_out(stream, to, from, bytes);
        stream.synchronize();
        ++copies_out;
        if (on_copy_out) on_copy_out(static_cast<std::byte*>(to), bytes);
    }
    void fill(Stream& stream, void* data, int byte, std::int64_t bytes) override { gpu_->fill(stream, data, byte, bytes); }
    std::unique_ptr<GpuEvent> make_event() override { return gpu_->make_event(); }
    void record(GpuEvent& event, Stream& stream) override { gpu_->record(event, stream); }
    void wait(Stream& stream, GpuEvent& event) override { gpu_->wait(stream, event); }
    void begin_capture(Stream& stream) override { gpu_->begin_capture(stream); }
    std::unique_ptr<GpuGraph> end_capture(Stream& stream) override { return gpu_->end_capture(stream); }
    void launch(GpuGraph& graph, Stream& stream) override { gpu_->launch(graph, stream); }
    void profile(bool on) override { gpu_->profile(on); }

private:
    std::unique_ptr<Gpu> gpu_;
};

std::string failure(FaultyGpu& gpu) {
    const auto queue = gpu.make_stream();
    Stream crew(1);
    std::string said;
    try {
        const DeviceTest test(Backend(gpu, *queue, crew));
        test.run("node7");
        test.run("node7");  // again, in the same memory
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ExitCode::device);
        said = e.what();
    }
    EXPECT_EQ(gpu.held, 0) << "its memory is given back";
    for (const sim::Finding& finding : sim::take_findings()) ADD_FAILURE() << finding.text;
    return said;
}

TEST(DeviceSelfTest, PassesWhereNothingIsWrong) {
    FaultyGpu gpu;
    EXPECT_EQ(failure(gpu), "");
}

TEST(DeviceSelfTest, OneWrongBitOfAProductIsNamedByGpuTypeAndElement) {
    for (const int product : {1, 2}) {
        FaultyGpu gpu;
        gpu.on_copy_out = [&](std::byte* data, std::int64_t) {
            if (gpu.copies_out == product) data[(3 * 64 + 5) * 4] ^= std::byte{1};
        };
        const std::string said = failure(gpu);
        EXPECT_NE(said.find(concat("the self-test failed on node7: the GPU at 0000:3b:00.0 (a GPU of the test) multiplied wrongly in ",
                                   product == 1 ? "float32" : "bf16", ": element (3, 5) of a product is ")),
                  std::string::npos)
            << said;
        EXPECT_NE(said.find("Take it out"), std::string::npos) << said;
    }
}

TEST(DeviceSelfTest, OneBitOfMemoryThatFlipsNamesItsPlace) {
    FaultyGpu gpu;
    int pieces = 0;
    gpu.on_copy_in = [&](std::byte* data, std::int64_t bytes) {
        if (bytes == 64 << 10 && ++pieces == 9) data[12345] ^= std::byte{16};  // 7 of the first pattern, 2 of the second
    };
    EXPECT_NE(failure(gpu).find("read wrongly from memory that was written: bytes 65536 to 131072 of 524288 have hash "), std::string::npos);
}

}  // namespace
}  // namespace keel
