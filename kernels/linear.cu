// The CUDA bodies of kernels/linear.h: products by cuBLASLt, which sees a row-major [r, c] as a column-major c x r, so
// that nothing is ever transposed in memory; and two small kernels for biases.
//
// A product's descriptors and the algorithm chosen for it are made when its shape is first met and kept by the thread,
// so that a step allocates nothing. No workspace: the library then offers the algorithms that need none. Reductions
// across blocks are limited to the schemes that give the same bits every time.
#include <algorithm>
#include <vector>

#include "kernels/cublaslt.cuh"
#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/linear.h"

namespace keel::KEEL_DEVICE {
namespace {

template <class T>
constexpr cudaDataType_t data_type = std::is_same_v<T, bf16> ? CUDA_R_16BF : CUDA_R_32F;

// The largest power of two that divides the address, of those the library asks about.
std::uint32_t alignment_of(const void* p) {
    std::uint32_t a = 256;
    while (reinterpret_cast<std::uintptr_t>(p) % a != 0) a /= 2;
    return a;
}

// A column-major matrix as the library sees it.
struct Matrix {
    std::int64_t rows, cols, ld;
    bool operator==(const Matrix&) const = default;
};
template <class T>
Matrix seen(const View<T>& v) {
    return {v.dim(1), v.dim(0), std::max(v.stride(), v.dim(1))};
}

// d = op(a) op(b) + beta d (+ bias): all that the choice of an algorithm may depend on.
struct Problem {
    Matrix a, b, d;
    cudaDataType_t in, out;
    bool transpose_a, transpose_b, accumulate, bias;
    std::uint32_t align_a, align_b, align_d;
    bool operator==(const Problem&) const = default;
};

class Plan {
public:
    Plan(cublasLtHandle_t handle, const Problem& problem) : problem_(problem) {
        const CublasLt& lt = cublaslt();
        check(lt.cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, problem.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, problem.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (problem.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        a_ = layout(problem.a, problem.in);
        b_ = layout(problem.b, problem.in);
        d_ = layout(problem.d, problem.out);

        cublasLtMatmulPreference_t preference = nullptr;
        check(lt.cublasLtMatmulPreferenceCreate(&preference));
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
            check(lt.cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value));
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{0});
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.align_a);
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.align_b);
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.align_d);
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, problem.align_d);
        cublasLtMatmulHeuristicResult_t result;
        int found = 0;
        const cublasStatus_t status =
            lt.cublasLtMatmulAlgoGetHeuristic(handle, desc_, a_, b_, d_, d_, preference, 1, &result, &found);
        check(lt.cublasLtMatmulPreferenceDestroy(preference));
        check(status);
        if (found == 0)
            fail("cublasLt: no algorithm for a product of ", problem.d.cols, " x ", problem.d.rows, " with rows ",
                 problem.a.ld, ", ", problem.b.ld, " and ", problem.d.ld,
                 " elements apart; make them multiples of 8 elements");
        algo_ = result.algo;
    }
    Plan(Plan&& other) noexcept
        : problem_(other.problem_),
          desc_(std::exchange(other.desc_, nullptr)),
          a_(std::exchange(other.a_, nullptr)),
          b_(std::exchange(other.b_, nullptr)),
          d_(std::exchange(other.d_, nullptr)),
          algo_(other.algo_) {}
    Plan& operator=(Plan&&) = delete;
    ~Plan() {
        const CublasLt& lt = cublaslt();
        if (desc_) lt.cublasLtMatmulDescDestroy(desc_);
        for (const cublasLtMatrixLayout_t l : {a_, b_, d_})
            if (l) lt.cublasLtMatrixLayoutDestroy(l);
    }

    bool is_for(const Problem& problem) const { return problem == problem_; }
    void run(cublasLtHandle_t handle, Stream& stream, const void* a, const void* b, void* d, const void* bias) {
        if (problem_.bias)
            check(cublaslt().cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                            sizeof bias));
        const float alpha = 1, beta = problem_.accumulate ? 1 : 0;
        check(cublaslt().cublasLtMatmul(handle, desc_, &alpha, a, a_, b, b_, &beta, d, d_, d, d_, &algo_, nullptr, 0,
                                        static_cast<cudaStream_t>(stream.native())));
    }

private:
    void set(cublasLtMatmulDescAttributes_t which, std::int32_t value) {
        check(cublaslt().cublasLtMatmulDescSetAttribute(desc_, which, &value, sizeof value));
    }
    static cublasLtMatrixLayout_t layout(const Matrix& m, cudaDataType_t type) {
        cublasLtMatrixLayout_t made = nullptr;
        check(cublaslt().cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(m.rows),
                                                    static_cast<std::uint64_t>(m.cols), m.ld));
        return made;
    }

    Problem problem_;
    cublasLtMatmulDesc_t desc_ = nullptr;
    cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
    cublasLtMatmulAlgo_t algo_;
};

// The plans of a thread, which is a rank and has one GPU.
class Plans {
public:
    Plans() { check(cublaslt().cublasLtCreate(&handle_)); }
    Plans(const Plans&) = delete;
    ~Plans() {
        plans_.clear();
        cublaslt().cublasLtDestroy(handle_);
    }
    void run(Stream& stream, const Problem& problem, const void* a, const void* b, void* d, const void* bias) {
        auto plan = std::find_if(plans_.begin(), plans_.end(), [&](const Plan& p) { return p.is_for(problem); });
        if (plan == plans_.end()) {
            plans_.emplace_back(handle_, problem);
            plan = plans_.end() - 1;
        }
        plan->run(handle_, stream, a, b, d, bias);
    }

private:
    cublasLtHandle_t handle_ = nullptr;
    std::vector<Plan> plans_;
};

Plans& plans() {
    thread_local Plans plans_of_thread;
    return plans_of_thread;
}

struct How {
    bool transpose_a = false, transpose_b = false, accumulate = false;
};
// All three are row-major Views; d^T = op(a^T) op(b^T).
template <class T, class Y>
void product(Stream& stream, const How& how, const View<const T>& a, const View<const T>& b, const View<Y>& d,
             const void* bias = nullptr) {
    const Problem problem{seen(a),
                          seen(b),
                          seen(d),
                          data_type<T>,
                          data_type<Y>,
                          how.transpose_a,
                          how.transpose_b,
                          how.accumulate,
                          bias != nullptr,
                          alignment_of(a.data()),
                          alignment_of(b.data()),
                          alignment_of(d.data())};
    plans().run(stream, problem, a.data(), b.data(), d.data(), bias);
}

constexpr int threads = 256;

template <class Y, class T>
__global__ void __launch_bounds__(threads)
    add_bias_kernel(Y* y, const T* bias, std::int64_t stride, std::int64_t tokens, std::int64_t out) {
    const std::int64_t i = std::int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= tokens * out) return;
    Y* const at = y + i / out * stride + i % out;
    store(at, {from_float<Y>(to_float(load(at).at[0]) + to_float(load(bias + i % out).at[0]))});
}

// A block sums 32 columns: each of its warps every eighth token, then the warps in order.
template <class T>
__global__ void __launch_bounds__(threads)
    bias_grad_kernel(float* dbias, const T* dy, std::int64_t stride, std::int64_t tokens, std::int64_t out) {
    constexpr int warps = threads / warp_size;
    KEEL_SHARED(float, partial, [warps][warp_size]);
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const std::int64_t column = std::int64_t{blockIdx.x} * warp_size + lane;
    float sum = 0;
    if (column < out)
        for (std::int64_t t = warp; t < tokens; t += warps) sum += to_float(load(dy + t * stride + column).at[0]);
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= out) return;
    for (int w = 1; w < warps; ++w) sum += partial[w][lane];
    store(dbias + column, {load(dbias + column).at[0] + sum});
}

void expect_terms(const char* op, std::int64_t terms) {
    if (terms == 0) fail(op, ": sums of no products; x, y and w must have columns");
}

template <class T, class Y>
void forward(Stream& stream, const LinearForward<T, Y>& a) {
    const std::int64_t tokens = a.x.dim(0), out = a.w.dim(0);
    if (tokens * out == 0) return;
    expect_terms("linear_forward", a.x.dim(1));
    // In the library's epilogue where it takes such a bias: of y's type, and aligned.
    const bool fused = a.bias && std::is_same_v<T, Y> && alignment_of(a.bias->data()) >= 16;
    product(stream, {.transpose_a = true}, a.w, a.x, a.y, fused ? a.bias->data() : nullptr);
    if (!a.bias || fused) return;
    launch(stream, {.blocks = static_cast<unsigned>(ceil_div(tokens * out, threads)), .threads = threads},
           add_bias_kernel<in_kernel<Y>, in_kernel<T>>, kernel_pointer(a.y), kernel_pointer(*a.bias), a.y.stride(),
           tokens, out);
}
template <class T>
void dgrad(Stream& stream, const LinearDgrad<T>& a) {
    if (a.dx.size() == 0) return;
    expect_terms("linear_dgrad", a.dy.dim(1));
    product(stream, {.accumulate = a.accumulate}, a.w, a.dy, a.dx);
}
template <class T>
void wgrad(Stream& stream, const LinearWgrad<T>& a) {
    if (a.dw.size() == 0) return;
    if (a.x.dim(0) > 0)
        product(stream, {.transpose_b = true, .accumulate = a.accumulate}, a.x, a.dy, a.dw);
    else if (!a.accumulate)
        check(cudaMemsetAsync(a.dw.data(), 0, static_cast<std::size_t>(a.dw.bytes()),
                              static_cast<cudaStream_t>(stream.native())));
}
template <class T>
void add_bias_grad(Stream& stream, const BiasGrad<T>& a) {
    const std::int64_t tokens = a.dy.dim(0), out = a.dy.dim(1);
    if (tokens * out == 0) return;
    launch(stream, {.blocks = static_cast<unsigned>(ceil_div(out, warp_size)), .threads = threads},
           bias_grad_kernel<in_kernel<T>>, a.dbias.data(), kernel_pointer(a.dy), a.dy.stride(), tokens, out);
}

}  // namespace

template <>
void run(Stream& stream, const LinearForward<float, float>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const LinearForward<bf16, float>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const LinearForward<bf16, bf16>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const LinearDgrad<float>& args) {
    dgrad(stream, args);
}
template <>
void run(Stream& stream, const LinearDgrad<bf16>& args) {
    dgrad(stream, args);
}
template <>
void run(Stream& stream, const LinearWgrad<float>& args) {
    wgrad(stream, args);
}
template <>
void run(Stream& stream, const LinearWgrad<bf16>& args) {
    wgrad(stream, args);
}
template <>
void run(Stream& stream, const BiasGrad<float>& args) {
    add_bias_grad(stream, args);
}
template <>
void run(Stream& stream, const BiasGrad<bf16>& args) {
    add_bias_grad(stream, args);
}

}  // namespace keel::KEEL_DEVICE
