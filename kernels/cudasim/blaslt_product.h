// kernels/cudasim/blaslt_product.h: what a product of cublasLt is once its descriptors have been read, its arithmetic,
// and the workspace it may be given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cudasim/blaslt.h"

namespace sim {

struct MatmulDesc {
    cuda::cublasComputeType_t compute;
    cuda::cudaDataType_t scale;
    bool transpose_a = false, transpose_b = false, device_scalars = false;
    int epilogue = cuda::CUBLASLT_EPILOGUE_DEFAULT;
    const void* bias = nullptr;
    int bias_type = -1;  // that of d
};
struct MatrixLayout {
    cuda::cudaDataType_t type;
    std::uint64_t rows, cols;
    std::int64_t ld;
    std::int32_t batch = 1;
    std::int64_t batch_stride = 0;

    std::size_t element_bytes() const { return type == cuda::CUDA_R_32F ? 4 : 2; }
    std::size_t span_bytes() const {
        if (rows == 0 || cols == 0) return 0;
        const std::uint64_t last = static_cast<std::uint64_t>(batch - 1) * static_cast<std::uint64_t>(batch_stride) +
                                   (cols - 1) * static_cast<std::uint64_t>(ld) + rows;
        return last * element_bytes();
    }
    std::string text() const {
        return std::to_string(rows) + " x " + std::to_string(cols) + " (ld " + std::to_string(ld) + ")";
    }
};

struct MatmulSizes {
    std::uint64_t m, n, k;
};

// Copied from descriptors that may be destroyed as soon as the product is queued.
struct MatmulProduct {
    MatmulDesc desc;
    MatrixLayout la, lb, lc, ld;
    MatmulSizes sizes;
    int splits;  // of k
    cuda::cublasLtReductionScheme_t scheme;  // how their sums are added, in order: apart in the workspace, or in d
    const std::byte *a, *b, *c;
    std::byte *d, *workspace;
    std::size_t workspace_bytes;
    float alpha, beta;
    const float *alpha_at, *beta_at;  // in device memory, or null
};

// What `splits` sums of it take; nothing of one, which goes straight into d, and counters alone of sums in place.
std::size_t workspace_of(const MatmulSizes& sizes, std::int32_t batch, int splits,
                         cuda::cublasLtReductionScheme_t scheme);

// Queued as two operations where it has a workspace: the first takes it, poisoned, and fills it with sums, the second
// reads it and gives it back. Another product that takes it in between is a finding, and then one of them is wrong.
void submit_product(cuda::cudaStream_t stream, const MatmulProduct& product);

}  // namespace sim
