// kernels/products.cuh: a matrix product by cuBLASLt. Its descriptors and the algorithm chosen for it are made when its
// shape is first met and kept by the thread, so that a step allocates nothing. No workspace: the library then offers the
// algorithms that need none. Reductions across blocks are limited to the schemes that give the same bits every time.
#pragma once

#include <cstdint>

#include "kernels/cublaslt.cuh"
#include "kernels/device.cuh"

namespace keel::KEEL_DEVICE {

// A column-major matrix as the library sees it.
struct Matrix {
    std::int64_t rows, cols, ld;
    bool operator==(const Matrix&) const = default;
};
// d = op(a) op(b) + beta d (+ bias): all that the choice of an algorithm may depend on.
struct Problem {
    Matrix a, b, d;
    cudaDataType_t in, out;
    bool transpose_a, transpose_b, accumulate, bias;
    std::uint32_t align_a, align_b, align_d;
    bool operator==(const Problem&) const = default;
};

// Queued; `bias` is read where the problem has one.
void run_product(Stream& stream, const Problem& problem, const void* a, const void* b, void* d, const void* bias);

}  // namespace keel::KEEL_DEVICE
