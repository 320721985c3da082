// kernels/products.cuh: a matrix product by cuBLASLt. Its descriptors and the algorithm chosen for it are made when its
// shape is first met and kept by the thread, so that a step allocates nothing. The library works in what the stream was
// lent (Stream::lend); on a stream without, algorithms are taken that need no workspace. Streams whose products may be
// under way together must not share one.
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

// How sums of a product that is cut along k may be added, with the same bits every time and in float32: apart in the
// workspace and then in order; or in place, in an order that counters in the workspace keep, where the result is
// float32, for in place they are rounded to its type in between.
constexpr std::uint32_t allowed_reductions(cudaDataType_t out) {
    std::uint32_t allowed = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (out == CUDA_R_32F) allowed |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    return allowed;
}

// Queued; `bias` is read where the problem has one.
void run_product(Stream& stream, const Problem& problem, const void* a, const void* b, void* d, const void* bias);

}  // namespace keel::KEEL_DEVICE
