// What nothing on this device can pass: copies, reads and writes of memory, and the largest product, on random numbers and on
// zeros. All later sections are shares of these.
#include "kernels/device_copy.h"
#include "kernels/linear.h"
#include "kernels/reduce.h"
#include "tests/gpu/check.h"

namespace keel::gpu_check {

void ceilings(const Check& c, Result& result) {
    const auto row = [&](const char* what, double amount, double seconds, const char* unit) {
        result.rows.push_back({{"what", what}, {"seconds", seconds}, {unit, tera(amount / seconds)}});
        return tera(amount / seconds);
    };
    Stream& s = *c.stream;
    double copy = 0, read = 0, write = 0, product = 0, zeros = 0;
    {
        const std::int64_t n = c.size(std::int64_t{1} << 28, 1 << 10);  // 1 GiB of float, far past the caches
        const Buffer<float> from(c, 1, n), to(c, 1, n);
        const Buffer<double> sum(c, 1, 1, true);
        const Buffer<std::byte> scratch(c, 1, reduce_scratch_bytes(n), true);
        const auto bytes = static_cast<double>(from.view().bytes());
        copy = row("copy, read plus written", 2 * bytes, c.seconds([&] { copy_on_device(s, to.view().data(), from.view().data(), from.view().bytes()); }), "TB/s");
        read = row("read: a sum of squares", bytes, c.seconds([&] { sum_of_squares(s, {.out = sum.flat(), .scratch = scratch.flat(), .x = from.flat()}); }), "TB/s");
        write = row("write: a fill", bytes, c.seconds([&] { c.gpu->fill(s, to.view().data(), 0, to.view().bytes()); }), "TB/s");
    }
    const std::int64_t n = c.size(8192, 32);
    for (const bool empty : {false, true}) {
        const Buffer<bf16> x(c, n, n, empty), w(c, n, n, empty), y(c, n, n, true);
        const double flops = 2 * static_cast<double>(n * n) * static_cast<double>(n);
        (empty ? zeros : product) = row(empty ? "bf16 product of zeros" : "bf16 product of random numbers", flops,
                                        c.seconds([&] { linear_forward<bf16>(s, {.y = y.view(), .x = x.view(), .w = w.view()}); }), "TFLOP/s");
    }
    result.summary = text("copy %.2f, read %.2f, write %.2f TB/s; bf16 product %.0f TFLOP/s, of zeros %.0f", copy, read, write, product, zeros);
}

}  // namespace keel::gpu_check
