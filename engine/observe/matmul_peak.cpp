#include "engine/observe/matmul_peak.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "kernels/base/pages.h"
#include "kernels/linear.h"

namespace keel {

// Where ops of the backend find them.
struct SquareProduct::Operands {
    Operands(const Backend& backend, std::int64_t bytes) : gpu(backend.gpu) {
        if (gpu) data = gpu->allocate(bytes);
        else pages = Pages(bytes), data = pages.data();  // huge ones, as the arena's: with small ones it would be slower than a step's
    }
    ~Operands() {
        if (gpu) gpu->release(data);
    }
    Operands(const Operands&) = delete;
    Operands& operator=(const Operands&) = delete;

    template <class T> View<T> matrix(std::int64_t n, int which) const {  // y, x, w
        std::byte* const at = data + n * n * static_cast<std::int64_t>(which == 0 ? 0 : sizeof(float) + (which == 2 ? sizeof(T) : 0));
        return {reinterpret_cast<T*>(at), {n, n}};
    }

    Gpu* gpu;
    Pages pages;
    std::byte* data = nullptr;
};

namespace {

// No zeros: some processors are faster on them.
template <class T> void fill(const Backend& backend, View<T> x, std::int64_t period) {
    std::vector<T> row(static_cast<std::size_t>(x.dim(1)));
    for (std::int64_t r = 0; r < x.dim(0); ++r) {
        for (std::int64_t i = 0; i < x.dim(1); ++i)
            row[static_cast<std::size_t>(i)] = static_cast<T>(static_cast<float>((r * x.dim(1) + i) % period) * 0.01f - 1.0f);
        backend.copy_in(x.row(r), row.data(), x.dim(1) * static_cast<std::int64_t>(sizeof(T)));
    }
}

}  // namespace

std::int64_t SquareProduct::bytes(Dtype dtype, std::int64_t n) {
    return n * n * (2 * size_bytes(dtype) + static_cast<std::int64_t>(sizeof(float)));
}

SquareProduct::SquareProduct(const Backend& backend, Dtype dtype, std::int64_t n, int repeats)
    : backend_(backend), dtype_(dtype), n_(n), repeats_(repeats), operands_(std::make_unique<Operands>(backend, bytes(dtype, n))) {
    with_type(dtype_, [&]<class T>() {
        fill(backend_, operands_->matrix<T>(n_, 1), 251);
        fill(backend_, operands_->matrix<T>(n_, 2), 241);
    });
}
SquareProduct::~SquareProduct() = default;

void SquareProduct::operator()() const {
    with_type(dtype_, [&]<class T>() {
        for (int i = 0; i < repeats_; ++i)
            linear_forward<T, float>(backend_.stream, {.y = operands_->matrix<float>(n_, 0), .x = operands_->matrix<T>(n_, 1),
                                                       .w = operands_->matrix<T>(n_, 2)});
    });
    backend_.stream.synchronize();
}

double SquareProduct::flops() const {
    const auto n = static_cast<double>(n_);
    return 2 * n * n * n * repeats_;
}

std::int64_t peak_product(const Backend& backend, Dtype dtype) {
    if (!backend.gpu) return 1024;
    std::int64_t n = 8192;  // small products are bound by their edges; but the run has taken what memory it needs
    while (n > 1024 && SquareProduct::bytes(dtype, n) > backend.gpu->free_bytes() / 2) n /= 2;
    return n;
}

double matmul_peak(const Backend& backend, Dtype dtype, std::int64_t n, bool shared) {
    if (backend.stream.device() == Device::cudasim) return 0;  // its seconds are no device's
    constexpr double enough_seconds = 0.15;
    const SquareProduct product(backend, dtype, n, backend.gpu ? 10 : 1);
    double best = 1e9, all = 0;
    int products = 0;
    const auto now = [] { return std::chrono::steady_clock::now(); };
    const auto start = now();
    for (; products < 50 && (products < 3 || all < enough_seconds); ++products) {
        const auto before = now();
        product();
        const auto after = now();
        best = std::min(best, std::chrono::duration<double>(after - before).count());
        all = std::chrono::duration<double>(after - start).count();
    }
    return product.flops() / (shared ? all / products : best);
}

}  // namespace keel
