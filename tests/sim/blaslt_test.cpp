// The three products of a linear layer, as row-major tensors seen through column-major descriptors, against double
// sums; and what cublasLt would refuse or get wrong.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cublaslt.cuh"
#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

struct Matrix {  // row-major [rows][cols], rows `stride` apart
    std::uint64_t rows, cols;
    std::int64_t stride;
};

template <class T>
struct Device {
    T* data = nullptr;
    std::size_t n;
    explicit Device(std::size_t count) : n(count) { cudaMalloc(&data, n * sizeof(T)); }
    ~Device() { cudaFree(data); }
    std::vector<T> host() const {
        std::vector<T> out(n);
        cudaMemcpy(out.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost);
        return out;
    }
    void from(const std::vector<T>& x) { cudaMemcpy(data, x.data(), n * sizeof(T), cudaMemcpyHostToDevice); }
};

struct Call {
    bool transpose_a = false, transpose_b = false;
    cudaDataType_t in = CUDA_R_16BF, out = CUDA_R_16BF;
    float alpha = 1, beta = 0;
    std::uint32_t alignment = 16;
    std::size_t workspace = 0;     // that an algorithm may need
    void* memory = nullptr;        // and what it is given
    std::size_t memory_bytes = 0;
    std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cudaStream_t stream = nullptr;
    const void* bias = nullptr;
    bool no_bias = false;  // the epilogue of one, and no pointer
    int bias_type = -1;    // not said: that of d
};
// d = op(a) op(b), all as cublasLt sees them: a row-major [r][c] is a column-major c x r.
cublasStatus_t product(const Call& call, const void* a, Matrix ma, const void* b, Matrix mb, void* d, Matrix md) {
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t la = nullptr, lb = nullptr, ld = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    const CublasLt& lt = cublaslt();
    lt.cublasLtCreate(&handle);
    lt.cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const std::int32_t ta = call.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                       tb = call.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    lt.cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    lt.cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    if (call.bias || call.no_bias) {
        const std::int32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        lt.cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        if (call.bias)
            lt.cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call.bias, sizeof call.bias);
        if (call.bias_type >= 0)
            lt.cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &call.bias_type, sizeof call.bias_type);
    }
    lt.cublasLtMatrixLayoutCreate(&la, call.in, ma.cols, ma.rows, ma.stride);
    lt.cublasLtMatrixLayoutCreate(&lb, call.in, mb.cols, mb.rows, mb.stride);
    lt.cublasLtMatrixLayoutCreate(&ld, call.out, md.cols, md.rows, md.stride);
    lt.cublasLtMatmulPreferenceCreate(&preference);
    const std::uint64_t workspace = call.workspace;
    lt.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                            sizeof workspace);
    lt.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &call.schemes, sizeof call.schemes);
    for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        lt.cublasLtMatmulPreferenceSetAttribute(preference, which, &call.alignment, sizeof call.alignment);
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    cublasStatus_t status =
        lt.cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, ld, ld, preference, 1, &result, &found);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt.cublasLtMatmul(handle, desc, &call.alpha, a, la, b, lb, &call.beta, d, ld, d, ld, &result.algo,
                                   call.memory, call.memory_bytes, call.stream);
    lt.cublasLtMatmulDescDestroy(desc);
    for (const auto layout : {la, lb, ld}) lt.cublasLtMatrixLayoutDestroy(layout);
    lt.cublasLtMatmulPreferenceDestroy(preference);
    lt.cublasLtDestroy(handle);
    return status;
}

std::string finding() {
    const auto findings = sim::take_findings();
    return findings.empty() ? "" : findings.front().text;
}

constexpr std::uint64_t tokens = 13, in = 24, out = 40;
constexpr std::int64_t stride = 32;  // of x: its rows lie apart
std::vector<__nv_bfloat16> numbers(std::size_t n, int seed) {
    std::vector<__nv_bfloat16> x(n);
    for (std::size_t i = 0; i < n; ++i)
        x[i] =
            __nv_bfloat16(static_cast<float>(static_cast<int>(i * 37 + static_cast<std::size_t>(seed)) % 23 - 11) / 8);
    return x;
}
float f(__nv_bfloat16 x) { return static_cast<float>(x); }

// Sums of a few dozen products of small fractions: exact in float, so the expected result is one rounding of the true
// one.
TEST(Blaslt, ForwardIsXTimesWTransposedWithBias) {
    const auto x = numbers(tokens * stride, 1), w = numbers(out * in, 2), bias = numbers(out, 3);
    Device<__nv_bfloat16> dx(x.size()), dw(w.size()), db(bias.size()), dy(tokens * out);
    dx.from(x), dw.from(w), db.from(bias);
    ASSERT_EQ(product({.transpose_a = true, .bias = db.data}, dw.data, {out, in, in}, dx.data, {tokens, in, stride},
                      dy.data, {tokens, out, out}),
              CUBLAS_STATUS_SUCCESS);
    const auto y = dy.host();
    for (std::uint64_t t = 0; t < tokens; ++t)
        for (std::uint64_t o = 0; o < out; ++o) {
            float want = f(bias[o]);
            for (std::uint64_t i = 0; i < in; ++i) want += f(x[t * stride + i]) * f(w[o * in + i]);
            EXPECT_EQ(f(y[t * out + o]), f(__nv_bfloat16(want))) << t << " " << o;
        }
}
TEST(Blaslt, DgradIsDyTimesW) {
    const auto dy = numbers(tokens * out, 1), w = numbers(out * in, 2);
    Device<__nv_bfloat16> ddy(dy.size()), dw(w.size()), ddx(tokens * in);
    ddy.from(dy), dw.from(w);
    ASSERT_EQ(product({}, dw.data, {out, in, in}, ddy.data, {tokens, out, out}, ddx.data, {tokens, in, in}),
              CUBLAS_STATUS_SUCCESS);
    const auto dx = ddx.host();
    for (std::uint64_t t = 0; t < tokens; ++t)
        for (std::uint64_t i = 0; i < in; ++i) {
            float want = 0;
            for (std::uint64_t o = 0; o < out; ++o) want += f(dy[t * out + o]) * f(w[o * in + i]);
            EXPECT_EQ(f(dx[t * in + i]), f(__nv_bfloat16(want)));
        }
}
TEST(Blaslt, WgradAddsToFloat) {
    const auto dy = numbers(tokens * out, 1), x = numbers(tokens * stride, 2);
    std::vector<float> before(out * in, 0.25f);
    Device<__nv_bfloat16> ddy(dy.size()), dx(x.size());
    Device<float> dw(before.size());
    ddy.from(dy), dx.from(x), dw.from(before);
    ASSERT_EQ(product({.transpose_b = true, .out = CUDA_R_32F, .beta = 1}, dx.data, {tokens, in, stride}, ddy.data,
                      {tokens, out, out}, dw.data, {out, in, in}),
              CUBLAS_STATUS_SUCCESS);
    const auto got = dw.host();
    for (std::uint64_t o = 0; o < out; ++o)
        for (std::uint64_t i = 0; i < in; ++i) {
            float want = 0.25f;
            for (std::uint64_t t = 0; t < tokens; ++t) want += f(dy[t * out + o]) * f(x[t * stride + i]);
            EXPECT_EQ(got[o * in + i], want);
        }
}

// beta = 0 must not read what d held: it may be NaN.
TEST(Blaslt, BetaZeroDoesNotReadTheOldResult) {
    Device<float> a(16), b(16), d(16);
    a.from(std::vector<float>(16, 1)), b.from(std::vector<float>(16, 1));
    ASSERT_EQ(product({.in = CUDA_R_32F, .out = CUDA_R_32F}, a.data, {4, 4, 4}, b.data, {4, 4, 4}, d.data, {4, 4, 4}),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(d.host()[0], 4);
}

// Of 8 rows of d: a bias of 8 elements, in the device's memory, 16-byte aligned, and of d's type.
TEST(Blaslt, ABiasIsHeldAgainstTheRowsAndTypeOfTheResult) {
    Device<__nv_bfloat16> a(64), b(64), d(64), bias(8);
    std::vector<__nv_bfloat16> of_host(8);
    sim::take_findings();
    const auto says = [&](const Call& call) {
        const cublasStatus_t status = product(call, a.data, {8, 8, 8}, b.data, {8, 8, 8}, d.data, {8, 8, 8});
        const std::string text = finding();
        EXPECT_EQ(status == CUBLAS_STATUS_SUCCESS, text.empty()) << text;
        return text;
    };
    EXPECT_EQ(says({.bias = bias.data}), "");
    EXPECT_EQ(says({.bias = bias.data, .bias_type = CUDA_R_16BF}), "");
    EXPECT_NE(says({.no_bias = true}).find("CUBLASLT_MATMUL_DESC_BIAS_POINTER is not set"), std::string::npos);
    EXPECT_NE(says({.bias = of_host.data()}).find("the bias needs 16 bytes of device memory"), std::string::npos);
    EXPECT_NE(says({.bias = bias.data + 1}).find("the bias needs 16 bytes of device memory"), std::string::npos);
    EXPECT_NE(says({.bias = a.data + 1}).find("the bias is not aligned to 16 bytes"), std::string::npos);
    EXPECT_NE(says({.bias = bias.data, .bias_type = CUDA_R_32F}).find("a bias of type 0; it must have that of d, 14"), std::string::npos);
}

TEST(Blaslt, WhatCannotBeMultipliedIsRefusedWithItsReason) {
    Device<__nv_bfloat16> a(64), b(64), d(64);
    sim::take_findings();
    EXPECT_NE(product({}, a.data, {8, 8, 8}, b.data, {8, 4, 4}, d.data, {8, 8, 8}), CUBLAS_STATUS_SUCCESS);
    EXPECT_NE(finding().find("shapes disagree"), std::string::npos);
    EXPECT_NE(product({}, a.data, {0, 8, 8}, b.data, {8, 0, 8}, d.data, {8, 8, 8}), CUBLAS_STATUS_SUCCESS);
    EXPECT_NE(finding().find("a matrix has no elements"), std::string::npos);
    EXPECT_NE(product({}, a.data, {8, 8, 8}, b.data, {8, 8, 8}, d.data, {8, 8, 4}), CUBLAS_STATUS_SUCCESS);
    EXPECT_NE(finding().find("a leading dimension is less than the rows"), std::string::npos);
    EXPECT_NE(product({.in = CUDA_R_32F}, a.data, {4, 4, 4}, b.data, {4, 4, 4}, d.data, {4, 4, 4}),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_NE(finding().find("float gives float"), std::string::npos);
    EXPECT_NE(product({}, a.data + 1, {4, 4, 4}, b.data, {4, 4, 4}, d.data, {4, 4, 4}), CUBLAS_STATUS_SUCCESS);
    EXPECT_NE(finding().find("a is not aligned to 16 bytes"), std::string::npos);
    EXPECT_NE(product({}, a.data, {8, 8, 8}, b.data, {8, 8, 8}, d.data, {8, 8, 9}), CUBLAS_STATUS_SUCCESS);
    EXPECT_NE(finding().find("d needs 142 bytes of device memory"), std::string::npos);
    EXPECT_NE(product({.workspace = 1 << 16}, a.data, {8, 8, 8}, b.data, {8, 8, 8}, d.data, {8, 8, 8}),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_NE(finding().find("the algorithm needs 1024 bytes of workspace, but got 0"), std::string::npos);
    EXPECT_EQ(product({}, a.data, {8, 8, 8}, b.data, {8, 8, 8}, d.data, {8, 8, 8}), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(finding(), "");
}

// Four sums of a quarter of k each, 13 x 40 floats, lie in the workspace and are added in order; the rest of it is poison, as all of
// it was before.
TEST(Blaslt, AProductThatIsCutAlongKWorksInItsWorkspaceAndLeavesNothingOfWhatWasThere) {
    const auto x = numbers(tokens * in, 1), w = numbers(out * in, 2);
    Device<__nv_bfloat16> dx(x.size()), dw(w.size()), dy(tokens * out);
    dx.from(x), dw.from(w);
    constexpr std::size_t need = 4 * tokens * out * sizeof(float), given = need + 256;
    Device<unsigned char> workspace(given);
    workspace.from(std::vector<unsigned char>(given, 0x11));
    ASSERT_EQ(product({.transpose_a = true, .workspace = given, .memory = workspace.data, .memory_bytes = given}, dw.data, {out, in, in}, dx.data,
                      {tokens, in, in}, dy.data, {tokens, out, out}),
              CUBLAS_STATUS_SUCCESS);
    const auto y = dy.host();
    for (std::uint64_t t = 0; t < tokens; ++t)
        for (std::uint64_t o = 0; o < out; ++o) {
            float want = 0;
            for (std::uint64_t i = 0; i < in; ++i) want += f(x[t * in + i]) * f(w[o * in + i]);
            EXPECT_EQ(f(y[t * out + o]), f(__nv_bfloat16(want))) << t << " " << o;
        }
    const auto left = workspace.host();
    EXPECT_EQ(std::count(left.begin() + need, left.end(), 0x11), 0);
    float sum = 0, part;
    for (std::size_t split = 0; split < 4; ++split) {
        std::memcpy(&part, left.data() + split * tokens * out * sizeof(float), sizeof part);
        sum += part;
    }
    EXPECT_EQ(f(__nv_bfloat16(sum)), f(y[0]));
}

TEST(Blaslt, AWorkspaceIsHeldAgainstTheNeedAndItsAlignment) {
    Device<__nv_bfloat16> a(64), b(64), d(64);
    Device<unsigned char> workspace(2048);
    std::vector<unsigned char> of_host(2048);
    sim::take_findings();
    const auto says = [&](const Call& call) {
        const cublasStatus_t status = product(call, a.data, {8, 8, 8}, b.data, {8, 8, 8}, d.data, {8, 8, 8});
        const std::string text = finding();
        EXPECT_EQ(status == CUBLAS_STATUS_SUCCESS, text.empty()) << text;
        return text;
    };
    EXPECT_EQ(says({.workspace = 1024, .memory = workspace.data, .memory_bytes = 1024}), "");
    EXPECT_NE(says({.workspace = 1024, .memory = workspace.data, .memory_bytes = 1023}).find("needs 1024 bytes of workspace, but got 1023"), std::string::npos);
    EXPECT_NE(says({.workspace = 1024, .memory = workspace.data + 128, .memory_bytes = 1024}).find("the workspace is not aligned to 256 bytes"), std::string::npos);
    EXPECT_NE(says({.workspace = 1024, .memory = of_host.data(), .memory_bytes = 1024}).find("the workspace needs 1024 bytes of device memory"), std::string::npos);
    // Less may be needed: two sums, or one, which needs none; so with schemes that leave out sums apart.
    EXPECT_EQ(says({.workspace = 1023, .memory = workspace.data, .memory_bytes = 512}), "");
    EXPECT_EQ(says({.workspace = 511}), "");
    EXPECT_EQ(says({.workspace = 1024, .schemes = CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE}), "");
    const std::uint32_t in_place = CUBLASLT_REDUCTION_SCHEME_INPLACE;  // needs counters
    EXPECT_NE(says({.workspace = 1024, .schemes = in_place}).find("needs 256 bytes of workspace"), std::string::npos);
    EXPECT_EQ(says({.workspace = 1024, .memory = workspace.data, .memory_bytes = 256, .schemes = in_place}), "");
}

// 256 and then three ones: a bf16 of that size counts by twos, and 257 is halfway.
TEST(Blaslt, SumsInPlaceAreRoundedToTheTypeOfTheResultEveryTime) {
    Device<__nv_bfloat16> a(64), b(64), d(64);
    Device<float> d_float(64);
    Device<unsigned char> workspace(1024);
    std::vector<__nv_bfloat16> parts(64), ones(64, __nv_bfloat16(1.0f));
    for (std::size_t row = 0; row < 8; ++row)
        for (std::size_t split = 0; split < 4; ++split)
            parts[row * 8 + 2 * split] = __nv_bfloat16(split == 0 ? 256.0f : 1.0f);
    a.from(ones), b.from(parts);
    const auto sum = [&](std::uint32_t schemes) {
        EXPECT_EQ(product({.workspace = 1024, .memory = workspace.data, .memory_bytes = 1024, .schemes = schemes},
                          a.data, {8, 8, 8}, b.data, {8, 8, 8}, d.data, {8, 8, 8}),
                  CUBLAS_STATUS_SUCCESS);
        return f(d.host()[0]);
    };
    EXPECT_EQ(sum(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), 260);
    EXPECT_EQ(sum(CUBLASLT_REDUCTION_SCHEME_INPLACE), 256);
    EXPECT_EQ(product({.out = CUDA_R_32F, .workspace = 1024, .memory = workspace.data, .memory_bytes = 1024,
                       .schemes = CUBLASLT_REDUCTION_SCHEME_INPLACE},
                      a.data, {8, 8, 8}, b.data, {8, 8, 8}, d_float.data, {8, 8, 8}),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(d_float.host()[0], 259);
}

// On streams that nothing orders, the second product may begin amid the first: found under some orders, and only where they share.
TEST(Blaslt, TwoProductsUnderWayInOneWorkspaceAreReported) {
    Device<__nv_bfloat16> a(64), b(64), d(64), d2(64);
    Device<unsigned char> workspace(2048);
    a.from(numbers(64, 1)), b.from(numbers(64, 2));
    cudaStream_t streams[2];
    for (cudaStream_t& s : streams) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    const auto found = [&](std::ptrdiff_t apart, bool ordered) {
        int seeds = 0;
        for (std::uint64_t seed = 1; seed <= 20; ++seed) {
            sim::configure({.streams = sim::Streams::deferred, .seed = seed});
            cudaEvent_t first;
            cudaEventCreate(&first);
            for (const int i : {0, 1}) {
                if (i == 1 && ordered) cudaStreamWaitEvent(streams[1], first, 0);
                EXPECT_EQ(product({.workspace = 1024, .memory = workspace.data + i * apart, .memory_bytes = 1024, .stream = streams[i]}, a.data,
                                  {8, 8, 8}, b.data, {8, 8, 8}, i ? d2.data : d.data, {8, 8, 8}),
                          CUBLAS_STATUS_SUCCESS);
                if (i == 0) cudaEventRecord(first, streams[0]);
            }
            cudaDeviceSynchronize();
            cudaEventDestroy(first);
            const std::string text = finding();
            if (!text.empty()) ++seeds;
            EXPECT_TRUE(text.empty() || text.find("a workspace that one on another stream still works in") != std::string::npos) << text;
        }
        sim::configure({});
        return seeds;
    };
    EXPECT_GT(found(0, false), 0);
    EXPECT_GT(found(512, false), 0);  // in part
    EXPECT_EQ(found(1024, false), 0);
    EXPECT_EQ(found(0, true), 0);
    for (const cudaStream_t s : streams) cudaStreamDestroy(s);
}

}  // namespace
}  // namespace keel::on_cudasim
