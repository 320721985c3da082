#include "engine/fault/device_test.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/fault/known_product.h"
#include "engine/fault/patterns.h"
#include "kernels/base/error.h"
#include "kernels/base/hex.h"
#include "kernels/linear.h"
#include "kernels/reduce.h"

namespace keel {
namespace {

// 2048 x 2048: 256 tiles of 128 x 128, more than a GPU has multiprocessors. A simulated one takes its time.
constexpr DeviceTest::Sizes real{.side = 2048, .bytes = 256 << 20, .piece = 4 << 20};
constexpr DeviceTest::Sizes simulated{.side = 64, .bytes = 512 << 10, .piece = 64 << 10};

}  // namespace

DeviceTest::DeviceTest(const Backend& backend)
    : backend_(backend),
      sizes_(backend.gpu->device() == Device::cuda ? real : simulated),
      memory_(backend.gpu->allocate(sizes_.bytes)) {}

DeviceTest::~DeviceTest() { backend_.gpu->release(memory_); }

template <class T> std::string DeviceTest::multiply(const char* type) const {
    namespace known = known_product;
    const std::int64_t depth = known::depth, side = sizes_.side;
    std::vector<T> dy(static_cast<std::size_t>(depth * side)), x(dy.size());
    for (std::int64_t k = 0; k < depth; ++k)
        for (std::int64_t i = 0; i < side; ++i) {
            dy[static_cast<std::size_t>(k * side + i)] = static_cast<T>(static_cast<float>(known::a(i, k)));
            x[static_cast<std::size_t>(k * side + i)] = static_cast<T>(static_cast<float>(known::b(k, i)));
        }
    const std::int64_t operand = depth * side * static_cast<std::int64_t>(sizeof(T));
    T* const dy_there = reinterpret_cast<T*>(memory_);
    T* const x_there = reinterpret_cast<T*>(memory_ + operand);
    float* const dw_there = reinterpret_cast<float*>(memory_ + 2 * operand);
    backend_.copy_in(dy_there, dy.data(), operand);
    backend_.copy_in(x_there, x.data(), operand);
    linear_wgrad<T>(backend_.stream, {.dw = {dw_there, {side, side}}, .dy = View<T>(dy_there, {depth, side}),
                                      .x = View<T>(x_there, {depth, side}), .accumulate = false});
    std::vector<float> dw(static_cast<std::size_t>(side * side));
    backend_.copy_out(dw.data(), dw_there, side * side * 4);
    for (std::int64_t i = 0; i < side; ++i)
        for (std::int64_t j = 0; j < side; ++j)
            if (const float got = dw[static_cast<std::size_t>(i * side + j)]; got != static_cast<float>(known::product(i, j)))
                return concat("multiplied wrongly in ", type, ": element (", i, ", ", j, ") of a product is ", got, ", and must be ",
                              known::product(i, j));
    return {};
}

std::string DeviceTest::remember() const {
    const std::int64_t piece = sizes_.piece, words = piece / 8;
    const std::int64_t pieces = sizes_.bytes / piece - 1;  // the last one is for the hash
    std::byte* const out = memory_ + pieces * piece;
    std::byte* const scratch = out + 256;
    const std::int64_t scratch_bytes = reduce_scratch_bytes(piece);
    std::vector<std::uint64_t> pattern(static_cast<std::size_t>(words));
    std::vector<std::byte> host_scratch(static_cast<std::size_t>(scratch_bytes));
    std::vector<std::uint64_t> expected(static_cast<std::size_t>(pieces));
    for (std::size_t p = 0; p < memory_patterns; ++p) {
        for (std::int64_t i = 0; i < pieces; ++i) {  // all is written before any is read
            for (std::int64_t w = 0; w < words; ++w) pattern[static_cast<std::size_t>(w)] = pattern_word(p, i * words + w);
            hash(backend_.host, {.out = {&expected[static_cast<std::size_t>(i)], {1}}, .scratch = {host_scratch.data(), {scratch_bytes}},
                                 .x = View<std::byte>(reinterpret_cast<std::byte*>(pattern.data()), {piece})});
            backend_.host.synchronize();
            backend_.copy_in(memory_ + i * piece, pattern.data(), piece);
        }
        for (std::int64_t i = 0; i < pieces; ++i) {
            hash(backend_.stream, {.out = {reinterpret_cast<std::uint64_t*>(out), {1}}, .scratch = {scratch, {scratch_bytes}},
                                   .x = View<std::byte>(memory_ + i * piece, {piece})});
            std::uint64_t got = 0;
            backend_.copy_out(&got, out, 8);
            if (const std::uint64_t right = expected[static_cast<std::size_t>(i)]; got != right)
                return concat("read wrongly from memory that was written: bytes ", i * piece, " to ", (i + 1) * piece, " of ", sizes_.bytes,
                              " have hash ", hex(got), ", and must have ", hex(right));
        }
    }
    return {};
}

void DeviceTest::run(const std::string& host) const {
    std::string wrong = multiply<float>("float32");
    if (wrong.empty()) wrong = multiply<bf16>("bf16");
    if (wrong.empty()) wrong = remember();
    if (wrong.empty()) return;
    const std::string bus = backend_.gpu->bus_id();
    throw Error(concat("the self-test failed on ", host, ": the GPU", bus.empty() ? "" : " at " + bus, " (", backend_.gpu->describe(), ") ",
                       wrong, ". Take it out, and go on from the newest checkpoint on another one (--watch.self_test false trains here ",
                       "all the same)"),
                std::source_location::current(), ExitCode::device);
}

}  // namespace keel
