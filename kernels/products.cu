// The bodies of kernels/products.h and kernels/products.cuh.
#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/hex.h"
#include "kernels/products.cuh"
#include "kernels/products.h"

namespace keel::KEEL_DEVICE {
namespace {

// All that a choice depends on, in words.
std::string key_of(const Problem& p) {
    const auto type = [](cudaDataType_t t) { return t == CUDA_R_32F ? "f32" : "bf16"; };  // a GPU multiplies no other
    const auto matrix = [](const Matrix& m, bool transpose) {
        return concat(m.rows, " x ", m.cols, m.ld == m.rows ? "" : concat(" of ", m.ld), transpose ? " turned" : "");
    };
    return concat(type(p.in), " to ", type(p.out), ", ", matrix(p.a, p.transpose_a), " times ", matrix(p.b, p.transpose_b),
                  p.accumulate ? ", added" : "", p.bias ? ", with bias" : "", ", aligned to ", p.align_a, " ", p.align_b,
                  " ", p.align_d, p.d.ld == p.d.rows ? "" : concat(", rows ", p.d.ld, " apart"));
}

class Plan {
public:
    // In a workspace of `most_bytes`. `wanted`: what was chosen before; another is chosen where the library does not take
    // it, it needs more, or it adds sums in a way that is not allowed.
    Plan(cublasLtHandle_t handle, const Problem& problem, std::size_t most_bytes, const cublasLtMatmulAlgo_t* wanted)
        : problem_(problem), most_bytes_(most_bytes) {
        const CublasLt& lt = cublaslt();
        check(lt.cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, problem.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, problem.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (problem.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        a_ = layout(problem.a, problem.in);
        b_ = layout(problem.b, problem.in);
        d_ = layout(problem.d, problem.out);
        if (wanted && takes(handle, *wanted))
            algo_ = *wanted;
        else
            choose(handle);
    }
    Plan(Plan&& other) noexcept
        : problem_(other.problem_),
          most_bytes_(other.most_bytes_),
          bytes_(other.bytes_),
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

    bool is_for(const Problem& problem, std::size_t most_bytes) const {
        return problem == problem_ && most_bytes == most_bytes_;
    }
    void run(cublasLtHandle_t handle, Stream& stream, const void* a, const void* b, void* d, const void* bias) {
        if (problem_.bias)
            check(cublaslt().cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                            sizeof bias));
        const float alpha = 1, beta = problem_.accumulate ? 1 : 0;
        check(cublaslt().cublasLtMatmul(handle, desc_, &alpha, a, a_, b, b_, &beta, d, d_, d, d_, &algo_,
                                        stream.shared_workspace(), most_bytes_,
                                        static_cast<cudaStream_t>(stream.native())));
    }

    bool outdoes(const Plan& other) const { return problem_ == other.problem_ && most_bytes_ > other.most_bytes_; }

    // "bf16 x bf16 to f32, …" and the algorithm, as chosen_products gives them.
    std::string key() const { return key_of(problem_); }
    std::string algorithm() const {
        const auto of = [&](cublasLtMatmulAlgoConfigAttributes_t which) { return setting(algo_, which); };
        std::string text = concat("algorithm ", of(CUBLASLT_ALGO_CONFIG_ID), ", tile ", of(CUBLASLT_ALGO_CONFIG_TILE_ID),
                                  ", stages ", of(CUBLASLT_ALGO_CONFIG_STAGES_ID), ", split ",
                                  of(CUBLASLT_ALGO_CONFIG_SPLITK_NUM), ", workspace ", bytes_, " |");
        for (const std::uint64_t word : algo_.data) text.append(" ").append(hex(word));
        return text;
    }

private:
    bool takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo) {
        cublasLtMatmulHeuristicResult_t result{};
        if (cublaslt().cublasLtMatmulAlgoCheck(handle, desc_, a_, b_, d_, d_, &algo, &result) != CUBLAS_STATUS_SUCCESS)
            return false;
        bytes_ = result.workspaceSize;
        return bytes_ <= most_bytes_ &&
               (setting(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) & ~allowed_reductions(problem_.out)) == 0;
    }
    static std::uint32_t setting(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t which) {
        std::uint32_t value = 0;
        check(cublaslt().cublasLtMatmulAlgoConfigGetAttribute(&algo, which, &value, sizeof value, nullptr));
        return value;
    }
    void choose(cublasLtHandle_t handle) {
        const CublasLt& lt = cublaslt();
        const Problem& problem = problem_;
        cublasLtMatmulPreference_t preference = nullptr;
        check(lt.cublasLtMatmulPreferenceCreate(&preference));
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
            check(lt.cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value));
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{most_bytes_});
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, allowed_reductions(problem.out));
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
        if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS)
            fail("cublasLt: no algorithm for a product of ", problem.d.cols, " x ", problem.d.rows, " with rows ",
                 problem.a.ld, ", ", problem.b.ld, " and ", problem.d.ld,
                 " elements apart; make them multiples of 8 elements");
        algo_ = result.algo;
        bytes_ = result.workspaceSize;
    }
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
    std::size_t most_bytes_, bytes_ = 0;  // of workspace: what there is, and what the algorithm needs of it
    cublasLtMatmulDesc_t desc_ = nullptr;
    cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
    cublasLtMatmulAlgo_t algo_{};
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
        const auto bytes = static_cast<std::size_t>(stream.shared_bytes());
        auto plan = std::find_if(plans_.begin(), plans_.end(), [&](const Plan& p) { return p.is_for(problem, bytes); });
        if (plan == plans_.end()) {
            const auto wanted = wanted_.find(key_of(problem));
            plans_.emplace_back(handle_, problem, bytes, wanted == wanted_.end() ? nullptr : &wanted->second);
            plan = plans_.end() - 1;
        }
        plan->run(handle_, stream, a, b, d, bias);
    }

    // Of a problem that was met with several workspaces, the choice in the largest: a run's steps have one, what it
    // does before may not.
    std::string chosen() const {
        std::string text = whose() + "\n";
        for (const Plan& plan : plans_)
            if (std::ranges::none_of(plans_, [&](const Plan& other) { return other.outdoes(plan); }))
                text += plan.key() + ": " + plan.algorithm() + "\n";
        return text;
    }
    // Of a product that is met later; lines that are none, and all of another GPU or library, are passed over.
    void prefer(const std::string& chosen) {
        std::istringstream lines(chosen);
        std::string line;
        if (!std::getline(lines, line) || line != whose()) return;
        while (std::getline(lines, line)) {
            const auto colon = line.find(": "), bar = line.find(" | ");
            if (colon == std::string::npos || bar == std::string::npos) continue;
            cublasLtMatmulAlgo_t algo{};
            std::istringstream words(line.substr(bar + 3));
            bool whole = true;
            for (std::uint64_t& word : algo.data) whole = whole && static_cast<bool>(words >> std::hex >> word);
            if (whole) wanted_[line.substr(0, colon)] = algo;
        }
    }

private:
    static std::string whose() {
        int device = 0;
        cudaDeviceProp properties;
        check(cudaGetDevice(&device));
        check(cudaGetDeviceProperties(&properties, device));
        return concat("cublasLt ", cublaslt().cublasLtGetVersion(), " on ", properties.name, " of ",
                      properties.multiProcessorCount, " multiprocessors");
    }

    cublasLtHandle_t handle_ = nullptr;
    std::vector<Plan> plans_;
    std::map<std::string, cublasLtMatmulAlgo_t> wanted_;
};

Plans& plans() {
    thread_local Plans plans_of_thread;
    return plans_of_thread;
}

}  // namespace

void run_product(Stream& stream, const Problem& problem, const void* a, const void* b, void* d, const void* bias) {
    plans().run(stream, problem, a, b, d, bias);
}
std::string chosen_products() { return plans().chosen(); }
void prefer_products(const std::string& chosen) { plans().prefer(chosen); }

}  // namespace keel::KEEL_DEVICE
