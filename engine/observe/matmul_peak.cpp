#include "engine/observe/matmul_peak.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/matmul.h"

namespace keel {
namespace {

template <class T> double measure(Stream& stream) {
    constexpr std::int64_t n = 1024;
    constexpr double enough_seconds = 0.15;
    std::vector<T> a(n * n), b(n * n);
    std::vector<float> c(n * n);
    for (std::size_t i = 0; i < a.size(); ++i) {  // no zeros: some processors are faster on them
        a[i] = static_cast<T>(static_cast<float>(i % 251) * 0.01f - 1.0f);
        b[i] = static_cast<T>(static_cast<float>(i % 241) * 0.01f - 1.0f);
    }
    const Matmul<T, float> args{.c = c.data(), .c_stride = n, .a = {a.data(), n, 1}, .b = {b.data(), 1, n}, .m = n, .n = n,
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
    return dtype == Dtype::f32 ? measure<float>(stream) : measure<bf16>(stream);
}

}  // namespace keel
