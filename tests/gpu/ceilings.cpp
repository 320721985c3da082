// What nothing on this device can pass: copies, reads and writes of memory, and the largest product, on random numbers and on
// zeros. All later sections are shares of these.
#include "kernels/device_copy.h"
#include "kernels/linear.h"
#include "kernels/reduce.h"
#include "tests/gpu/check.h"

namespace keel::gpu_check {

namespace {

constexpr std::int64_t large = 8192;
double product(const Check& c, bool zeros) {  // FLOP/s
    const std::int64_t n = c.size(large, 32);
    const Buffer<bf16> x(c, n, n, zeros), w(c, n, n, zeros), y(c, n, n, true);
    return 2 * static_cast<double>(n * n) * static_cast<double>(n) /
           c.seconds([&] { linear_forward<bf16>(*c.stream, {.y = y.view(), .x = x.view(), .w = w.view()}); });
}

}  // namespace

double largest_product(const Check& c) { return product(c, false); }

void ceilings(const Check& c, Result& result) {
    // What an H200 was measured at, or is expected to reach; its memory's datasheet says 4.8 TB/s.
    const auto row = [&](const char* what, double per_second, const char* unit, double of, const char* of_what, std::optional<double> goal) {
        result.add({{"what", what}, {unit, tera(per_second)}}, {per_second / of, of_what, goal});
        return tera(per_second);
    };
    Stream& s = *c.stream;
    double copy = 0, read = 0, write = 0;
    {
        const std::int64_t n = c.size(std::int64_t{1} << 28, 1 << 10);  // 1 GiB of float, far past the caches
        const Buffer<float> from(c, 1, n), to(c, 1, n);
        const Buffer<double> sum(c, 1, 1, true);
        const Buffer<std::byte> scratch(c, 1, reduce_scratch_bytes(n), true);
        const auto bytes = static_cast<double>(from.view().bytes());
        const auto memory = [&](const char* what, double moved, std::optional<double> goal, const std::function<void()>& body) {
            return row(what, moved / c.seconds(body), "TB/s", 4.8e12, "an H200's datasheet", goal);
        };
        copy = memory("copy, read plus written", 2 * bytes, c.on_h200(4.2 / 4.8),
                      [&] { copy_on_device(s, to.view().data(), from.view().data(), from.view().bytes()); });
        read = memory("read: a sum of squares", bytes, std::nullopt, [&] { sum_of_squares(s, {.out = sum.flat(), .scratch = scratch.flat(), .x = from.flat()}); });
        write = memory("write: a fill", bytes, std::nullopt, [&] { c.gpu->fill(s, to.view().data(), 0, to.view().bytes()); });
    }
    const auto of_bf16 = [&](const char* what, bool zeros, double goal) {
        return row(what, product(c, zeros), "TFLOP/s", 989e12, "an H200's datasheet", c.on_h200(goal));
    };
    const double random = of_bf16("bf16 product of random numbers", false, 770 / 989.0), zeros = of_bf16("bf16 product of zeros", true, 880 / 989.0);
    result.summary = text("copy %.2f, read %.2f, write %.2f TB/s; bf16 product %.0f TFLOP/s, of zeros %.0f", copy, read, write, random, zeros);
}

}  // namespace keel::gpu_check
