#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>

#include "engine/bench/bench.h"
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

double copy_rate(Stream& stream) {
    constexpr std::int64_t bytes = 256 << 20, tile = 1 << 20;
    const Buffer<float> from(1, bytes / 4), to(1, bytes / 4);
    const auto body = [&] {
        stream.parallel(bytes / tile, [&](std::int64_t t, int) { std::memcpy(to.data() + t * (tile / 4), from.data() + t * (tile / 4), tile); });
    };
    return 2.0 * bytes / measure({body}, 7)[0].best_s;
}

template <class T> void square_product(Stream& stream, std::int64_t n, const T* a, const T* b, float* c, int repeats) {
    const Matmul<T, float> args{.c = c, .c_stride = n, .a = {a, n, 1}, .b = {b, 1, n}, .m = n, .n = n, .k = n, .accumulate = false};
    for (int i = 0; i < repeats; ++i) matmul<T, float>(stream, args);
}

}  // namespace

struct Ceiling::Operands {
    Stream& stream;
    std::int64_t n;
    int repeats;
    Buffer<float> c;
    std::optional<Buffer<float>> a32, b32;
    std::optional<Buffer<bf16>> a16, b16;
};

Ceiling::Ceiling(Stream& stream, const std::string& dtype, std::int64_t n)
    : operands_(new Operands{stream, n, static_cast<int>(std::max<std::int64_t>(1, 5'000'000'000 / (n * n * n))), Buffer<float>(n, n),
                             {}, {}, {}, {}}) {
    if (dtype == "f32") operands_->a32.emplace(n, n, 1), operands_->b32.emplace(n, n, 2);
    else operands_->a16.emplace(n, n, 1), operands_->b16.emplace(n, n, 2);
}
Ceiling::~Ceiling() = default;

double Ceiling::flops() const {
    const auto n = static_cast<double>(operands_->n);
    return 2.0 * n * n * n * operands_->repeats;
}

void Ceiling::operator()() const {
    Operands& o = *operands_;
    if (o.a32) square_product(o.stream, o.n, o.a32->data(), o.b32->data(), o.c.data(), o.repeats);
    else square_product(o.stream, o.n, o.a16->data(), o.b16->data(), o.c.data(), o.repeats);
}

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
    // The best over sizes: a ceiling is what the machine can do, not what it does on average. In turns, so that a busy
    // moment does not decide which size is best.
    constexpr std::int64_t sizes[] = {512, 1024, 1536};
    for (const char* dtype : {"f32", "bf16"}) {
        const bool f32 = std::string_view(dtype) == "f32";
        std::vector<std::unique_ptr<Ceiling>> products;
        std::vector<std::function<void()>> bodies;
        for (const std::int64_t n : sizes) {
            products.push_back(std::make_unique<Ceiling>(stream, dtype, n));
            bodies.emplace_back([product = products.back().get()] { (*product)(); });
        }
        const std::vector<Sample> samples = measure(bodies, 5);
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const double rate = products[i]->flops() / samples[i].best_s;
            if (double& best = f32 ? peaks.matmul_f32 : peaks.matmul_bf16; rate > best) {
                best = rate;
                (f32 ? peaks.best_f32 : peaks.best_bf16) = sizes[i];
            }
        }
    }
    peaks.copy = copy_rate(stream);
    return peaks;
}

}  // namespace keel::bench
