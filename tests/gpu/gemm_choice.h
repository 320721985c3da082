// tests/gpu/gemm_choice.h: what cublasLt's first choice of an algorithm costs against the best of those it offers.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/base/stream.h"

namespace keel {

// d [m x n, column-major] = op(a) op(b), of bf16 in device memory; d is bf16, or float32 that is added to.
struct GemmProblem {
    std::int64_t m, n, k;
    bool transpose_a, transpose_b, to_float;
    const void *a, *b;
    void* d;
};
struct GemmChoice {
    double without_s = 0;                          // the library's first choice without a workspace
    double first_s = 0;                            // with the stream's, which is what keel takes
    double best_s = 0;                             // the best of those offered with one
    int best = 1, offered = 0;                     // which, of how many
    std::int64_t first_bytes = 0, best_bytes = 0;  // of workspace
};
// Seconds that what a body queues takes.
using Clock = std::function<double(const std::function<void()>& body)>;

namespace on_cuda {
GemmChoice choose_gemm(Stream& stream, const GemmProblem& problem, const Clock& clock);
}
namespace on_cudasim {
GemmChoice choose_gemm(Stream& stream, const GemmProblem& problem, const Clock& clock);
}

}  // namespace keel
