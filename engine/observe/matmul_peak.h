// engine/observe/matmul_peak.h: what this machine, or its GPU, reaches in a large matrix product: the ceiling a training step is
// measured against in the log. `keel bench` measures more, and longer.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/memory/backend.h"
#include "kernels/base/dtype.h"

namespace keel {

// y = x w^T as a linear layer computes it, all [n, n], x and w of `dtype` and y float, on numbers that are nothing special.
class SquareProduct {
public:
    // `repeats` of them in one go. The backend outlives it.
    SquareProduct(const Backend& backend, Dtype dtype, std::int64_t n, int repeats);
    ~SquareProduct();
    SquareProduct(const SquareProduct&) = delete;
    SquareProduct& operator=(const SquareProduct&) = delete;
    static std::int64_t bytes(Dtype dtype, std::int64_t n);

    void operator()() const;  // done when it returns
    double flops() const;     // of one go

private:
    struct Operands;
    const Backend backend_;
    const Dtype dtype_;
    const std::int64_t n_;
    const int repeats_;
    std::unique_ptr<Operands> operands_;
};

// The `n` that is large enough, or the largest there is memory for. Ranks that are to be compared take the least of theirs.
std::int64_t peak_product(const Backend& backend, Dtype dtype);

// FLOP/s on all threads of the backend's stream, or on its GPU: the best of a few products of [n, n]. Takes about a fifth of a
// second. 0 on a simulated GPU. `shared`: other ranks measure on the same processors meanwhile; then it is the mean, since the
// best is of a moment when the others stood still.
double matmul_peak(const Backend& backend, Dtype dtype, std::int64_t n, bool shared);

}  // namespace keel
