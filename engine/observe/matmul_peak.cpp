#include "engine/observe/matmul_peak.h"

#include <algorithm>
#include <chrono>

#include "kernels/base/pages.h"
#include "kernels/matmul.h"

namespace keel {
namespace {

template <class T> double measure(Stream& stream) {
    constexpr std::int64_t n = 1024;
    constexpr double enough_seconds = 0.15;
    // Huge pages, as the arena's: with small ones the product would be slower than those of a step.
    const Pages memory(n * n * static_cast<std::int64_t>(2 * sizeof(T) + sizeof(float)));
    auto* c = reinterpret_cast<float*>(memory.data());
    T* a = reinterpret_cast<T*>(c + n * n);
    T* b = a + n * n;
    for (std::int64_t i = 0; i < n * n; ++i) {  // no zeros: some processors are faster on them
        a[i] = static_cast<T>(static_cast<float>(i % 251) * 0.01f - 1.0f);
        b[i] = static_cast<T>(static_cast<float>(i % 241) * 0.01f - 1.0f);
    }
    const Matmul<T, float> args{.c = c, .c_stride = n, .a = {a, n, 1}, .b = {b, 1, n}, .m = n, .n = n,
                                .k = n, .accumulate = false};
    double best = 1e9;
    const auto now = [] { return std::chrono::steady_clock::now(); };
    const auto start = now();
    for (int i = 0; i < 50 && (i < 3 || std::chrono::duration<double>(now() - start).count() < enough_seconds); ++i) {
        const auto before = now();
        matmul<T, float>(stream, args);
        best = std::min(best, std::chrono::duration<double>(now() - before).count());
    }
    return 2.0 * n * n * n / best;
}

}  // namespace

double matmul_peak(Stream& stream, Dtype dtype) {
    return with_type(dtype, [&]<class T>() { return measure<T>(stream); });
}

}  // namespace keel
