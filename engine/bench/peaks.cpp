#include <algorithm>
#include <chrono>
#include <cstring>

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
    std::int64_t n;
    int repeats;
    Buffer<float> c;
    std::function<void()> product;
};

Ceiling::Ceiling(Stream& stream, const std::string& dtype, std::int64_t n)
    : operands_(new Operands{n, static_cast<int>(std::max<std::int64_t>(1, 5'000'000'000 / (n * n * n))), Buffer<float>(n, n), {}}) {
    with_type(dtype_named(dtype), [&]<class T>() {
        operands_->product = [&stream, o = operands_.get(), a = std::make_shared<Buffer<T>>(n, n, 1),
                              b = std::make_shared<Buffer<T>>(n, n, 2)] {
            square_product(stream, o->n, a->data(), b->data(), o->c.data(), o->repeats);
        };
    });
}
Ceiling::~Ceiling() = default;

double Ceiling::flops() const {
    const auto n = static_cast<double>(operands_->n);
    return 2.0 * n * n * n * operands_->repeats;
}

void Ceiling::operator()() const {
    operands_->product();
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
    for (const Dtype dtype : all_dtypes) {
        Peaks::Product& product = peaks.products[static_cast<std::size_t>(dtype)];
        std::vector<std::unique_ptr<Ceiling>> products;
        std::vector<std::function<void()>> bodies;
        for (const std::int64_t n : sizes) {
            products.push_back(std::make_unique<Ceiling>(stream, std::string(short_name(dtype)), n));
            bodies.emplace_back([&one = *products.back()] { one(); });
        }
        const std::vector<Sample> samples = measure(bodies, 5);
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const double rate = products[i]->flops() / samples[i].best_s;
            if (rate > product.rate) product = {rate, sizes[i]};
        }
    }
    peaks.copy = copy_rate(stream);
    return peaks;
}

}  // namespace keel::bench
