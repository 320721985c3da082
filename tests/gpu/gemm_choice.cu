#include "tests/gpu/gemm_choice.h"

#include <algorithm>

#include "kernels/products.cuh"

namespace keel::KEEL_DEVICE {
namespace {

// The descriptors of one product.
struct Product {
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;

    explicit Product(const GemmProblem& p) {
        const CublasLt& lt = cublaslt();
        check(lt.cublasLtCreate(&handle));
        check(lt.cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        const std::int32_t op_a = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
        check(lt.cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
        check(lt.cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
        const auto layout = [&](cublasLtMatrixLayout_t& l, cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
            check(lt.cublasLtMatrixLayoutCreate(&l, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows));
        };
        layout(a, CUDA_R_16BF, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k);
        layout(b, CUDA_R_16BF, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n);
        layout(d, p.to_float ? CUDA_R_32F : CUDA_R_16BF, p.m, p.n);
        check(lt.cublasLtMatmulPreferenceCreate(&preference));
        const std::uint32_t reductions = allowed_reductions(p.to_float ? CUDA_R_32F : CUDA_R_16BF);
        check(lt.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &reductions, sizeof reductions));
    }
    Product(const Product&) = delete;
    Product& operator=(const Product&) = delete;
    ~Product() {
        const CublasLt& lt = cublaslt();
        lt.cublasLtMatmulPreferenceDestroy(preference);
        for (const cublasLtMatrixLayout_t l : {a, b, d}) lt.cublasLtMatrixLayoutDestroy(l);
        lt.cublasLtMatmulDescDestroy(desc);
        lt.cublasLtDestroy(handle);
    }

    int offered(std::int64_t workspace_bytes, int most, cublasLtMatmulHeuristicResult_t* results) const {
        const auto bytes = static_cast<std::uint64_t>(workspace_bytes);
        int found = 0;
        check(cublaslt().cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
        check(cublaslt().cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference, most, results, &found));
        // Those that can be run, in the library's order.
        const auto end = std::remove_if(results, results + found, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
        if (end == results) fail("cublasLt offers no algorithm");
        return static_cast<int>(end - results);
    }
};

}  // namespace

GemmChoice choose_gemm(Stream& stream, const GemmProblem& p, const Clock& clock) {
    constexpr int most = 16;
    const Product product(p);
    const auto seconds = [&](const cublasLtMatmulHeuristicResult_t& choice, std::int64_t workspace_bytes) {
        return clock([&] {
            const float alpha = 1, beta = p.to_float ? 1 : 0;
            check(cublaslt().cublasLtMatmul(product.handle, product.desc, &alpha, p.a, product.a, p.b, product.b, &beta, p.d, product.d, p.d, product.d,
                                            &choice.algo, workspace_bytes > 0 ? stream.shared_workspace() : nullptr, static_cast<std::size_t>(workspace_bytes),
                                            static_cast<cudaStream_t>(stream.native())));
        });
    };
    cublasLtMatmulHeuristicResult_t results[most] = {};
    const auto bytes = [&](int i) { return static_cast<std::int64_t>(results[i].workspaceSize); };
    product.offered(0, 1, results);
    GemmChoice choice;
    choice.without_s = seconds(results[0], 0);
    choice.offered = product.offered(stream.shared_bytes(), most, results);
    choice.first_s = choice.best_s = seconds(results[0], stream.shared_bytes());
    choice.first_bytes = choice.best_bytes = bytes(0);
    for (int i = 1; i < choice.offered; ++i)
        if (const double s = seconds(results[i], stream.shared_bytes()); s < choice.best_s)
            choice.best_s = s, choice.best = i + 1, choice.best_bytes = bytes(i);
    return choice;
}

}  // namespace keel::KEEL_DEVICE
