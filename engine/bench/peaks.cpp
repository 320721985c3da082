#include <algorithm>
#include <chrono>
#include <cstring>

#include "engine/bench/bench.h"
#include "kernels/base/random.h"
#include "kernels/matmul.h"
#include "kernels/simd.h"

namespace keel::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& body) {
    const auto start = Clock::now();
    body();
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Enough independent chains to fill the pipelines; the volatile sink keeps the compiler from seeing that nobody looks.
constexpr std::int64_t fma_rounds = 2'000'000;
constexpr int fma_chains = 16;
void fma_loop(volatile float* sink) {
    simd::Float x[fma_chains];
    for (int i = 0; i < fma_chains; ++i) x[i] = simd::set(1.0f + static_cast<float>(i) * 0.01f);
    const simd::Float a = simd::set(0.999f), b = simd::set(0.001f);
    for (std::int64_t r = 0; r < fma_rounds; ++r)
        for (int i = 0; i < fma_chains; ++i) x[i] = x[i] * a + b;
    simd::Float total = x[0];
    for (int i = 1; i < fma_chains; ++i) total += x[i];
    *sink = simd::sum(total);
}

template <class T> std::vector<T> random_vector(std::int64_t n, std::uint64_t seed) {
    const Random random(seed, Purpose::test, "bench");
    std::vector<T> x(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i)
        x[static_cast<std::size_t>(i)] = static_cast<T>(static_cast<float>(random.uniform(static_cast<std::uint64_t>(i)) - 0.5));
    return x;
}

// The best over sizes and forms: a ceiling is what the machine can do, not what it does on average.
template <class T> double best_matmul(Stream& stream) {
    double best = 0;
    for (const std::int64_t n : {512, 1024, 2048}) {
        const std::vector<T> a = random_vector<T>(n * n, 1), b = random_vector<T>(n * n, 2);
        std::vector<float> c(static_cast<std::size_t>(n * n));
        for (const bool transposed : {false, true}) {
            const MatmulOperand<T> right = transposed ? MatmulOperand<T>{b.data(), 1, n} : MatmulOperand<T>{b.data(), n, 1};
            const Matmul<T, float> args{.c = c.data(), .c_stride = n, .a = {a.data(), n, 1}, .b = right, .m = n, .n = n,
                                        .k = n, .accumulate = false};
            const int repeats = static_cast<int>(std::max<std::int64_t>(1, (std::int64_t(1) << 30) / (n * n * n)));
            const auto body = [&] { for (int i = 0; i < repeats; ++i) matmul<T, float>(stream, args); };
            const Sample s = measure({body}, 5)[0];
            best = std::max(best, 2.0 * static_cast<double>(n * n * n) * repeats / s.best_s);
        }
    }
    return best;
}

double copy_rate(Stream& stream) {
    constexpr std::int64_t bytes = 256 << 20, tile = 1 << 20;
    const std::vector<char> from(bytes, 1);
    std::vector<char> to(bytes, 2);
    const auto body = [&] {
        stream.parallel(bytes / tile, [&](std::int64_t t, int) { std::memcpy(to.data() + t * tile, from.data() + t * tile, tile); });
    };
    return 2.0 * bytes / measure({body}, 7)[0].best_s;
}

}  // namespace

std::vector<Sample> measure(const std::vector<std::function<void()>>& bodies, int rounds) {
    std::vector<std::vector<double>> seconds(bodies.size());
    for (const auto& body : bodies) body();
    for (int r = 0; r < rounds; ++r)
        for (std::size_t i = 0; i < bodies.size(); ++i) seconds[i].push_back(seconds_of(bodies[i]));
    std::vector<Sample> out;
    for (auto& s : seconds) {
        std::sort(s.begin(), s.end());
        out.push_back({s[s.size() / 2], s.front()});
    }
    return out;
}

Peaks measure_peaks(Stream& stream) {
    Peaks peaks;
    std::vector<float> sink(static_cast<std::size_t>(stream.threads()) * 16);
    const auto fma = [&] {
        stream.parallel(stream.threads(), [&](std::int64_t t, int) { fma_loop(&sink[static_cast<std::size_t>(t) * 16]); });
    };
    peaks.fma_f32 = 2.0 * simd::width * fma_chains * fma_rounds * stream.threads() / measure({fma}, 5)[0].best_s;
    peaks.matmul_f32 = best_matmul<float>(stream);
    peaks.matmul_bf16 = best_matmul<bf16>(stream);
    peaks.copy = copy_rate(stream);
    return peaks;
}

}  // namespace keel::bench
