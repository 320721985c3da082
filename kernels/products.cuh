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

// How sums of a product that is cut along k may be added, with the same bits every time: apart in the workspace and then
// in order, or in place, in an order that counters in the workspace keep. Left out is the scheme that rounds them to the
// type of the result in between.
constexpr std::uint32_t product_reductions = CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

// Queued; `bias` is read where the problem has one.
void run_product(Stream& stream, const Problem& problem, const void* a, const void* b, void* d, const void* bias);

}  // namespace keel::KEEL_DEVICE
