#include <algorithm>
#include <chrono>

#include "engine/bench/bench.h"
#include "kernels/copy.h"
#include "kernels/products.h"
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

double copy_rate(const Backend& backend) {
    constexpr std::int64_t bytes = 256 << 20;
    if (!backend.gpu) {
        const Buffer<float> from(1, bytes / 4), to(1, bytes / 4);
        return 2.0 * bytes / measure({[&] { copy<float>(backend.stream, to.flat(), from.flat()); }}, 7)[0].best_s;
    }
    std::byte* const data = backend.gpu->allocate(2 * bytes);
    const View<std::byte> to(data, {bytes}), from(data + bytes, {bytes});
    backend.zero(data, 2 * bytes);
    const auto body = [&] {
        for (int i = 0; i < 10; ++i) copy<std::byte>(backend.stream, to, from);
        backend.stream.synchronize();
    };
    const double rate = 10 * 2.0 * bytes / measure({body}, 7)[0].best_s;
    backend.gpu->release(data);
    return rate;
}

// A GPU's products have the workspace that they have in a step.
class ProductWorkspace {
public:
    explicit ProductWorkspace(const Backend& backend) : gpu_(backend.gpu) {
        if (!gpu_) return;
        const std::int64_t bytes = product_workspace_bytes(gpu_->device());
        data_ = gpu_->allocate(bytes);
        loan_ = backend.stream.lend(data_, bytes);
    }
    ProductWorkspace(const ProductWorkspace&) = delete;
    ProductWorkspace& operator=(const ProductWorkspace&) = delete;
    ~ProductWorkspace() {
        if (!gpu_) return;
        loan_ = {};
        gpu_->release(data_);
    }

private:
    Gpu* const gpu_;
    std::byte* data_ = nullptr;
    Stream::Loan loan_;
};

}  // namespace

int repeats(std::int64_t n, bool gpu) {
    const std::int64_t products = gpu ? 2'000'000'000'000 : 5'000'000'000;  // some milliseconds
    return static_cast<int>(std::clamp<std::int64_t>(products / (n * n * n), 1, 100));
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

std::unique_ptr<SquareProduct> ceiling(const Backend& backend, const std::string& dtype, std::int64_t n) {
    const bool gpu = backend.gpu != nullptr;
    return std::make_unique<SquareProduct>(backend, dtype_named(dtype), n, repeats(n, gpu));
}

Peaks measure_peaks(const Backend& backend) {
    Peaks peaks;
    const ProductWorkspace workspace(backend);
    if (!backend.gpu) {
        const int threads = backend.stream.threads();
        std::vector<float> sink(static_cast<std::size_t>(threads) * 16);
        const auto fma = [&] {
            backend.stream.parallel(threads, [&](std::int64_t t, int) { fma_loop(&sink[static_cast<std::size_t>(t) * 16]); });
        };
        peaks.fma_f32 = 2.0 * simd::width * fma_chains * fma_rounds * threads / measure({fma}, 5)[0].best_s;
    }
    // The best over sizes: a ceiling is what the machine can do, not what it does on average. In turns, so that a busy
    // moment does not decide which size is best.
    const std::vector<std::int64_t> sizes = backend.gpu ? std::vector<std::int64_t>{2048, 4096, 8192} : std::vector<std::int64_t>{512, 1024, 1536};
    for (const Dtype dtype : all_dtypes) {
        if (backend.gpu && dtype == Dtype::f16) continue;  // which it does not compute in
        Peaks::Product& product = peaks.products[static_cast<std::size_t>(dtype)];
        std::vector<std::unique_ptr<SquareProduct>> products;
        std::vector<std::function<void()>> bodies;
        for (const std::int64_t n : sizes) {
            products.push_back(ceiling(backend, std::string(short_name(dtype)), n));
            bodies.emplace_back([&one = *products.back()] { one(); });
        }
        const std::vector<Sample> samples = measure(bodies, 5);
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const double rate = products[i]->flops() / samples[i].best_s;
            if (rate > product.rate) product = {rate, sizes[i]};
        }
    }
    peaks.copy = copy_rate(backend);
    return peaks;
}

}  // namespace keel::bench
