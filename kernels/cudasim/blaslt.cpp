#include "kernels/cudasim/blaslt.h"

#include <cstring>
#include <string>

#include "kernels/cudasim/blaslt_product.h"
#include "kernels/cudasim/memory.h"

namespace sim {

struct MatmulPreference {
    std::uint64_t workspace_bytes = 0;
    std::uint32_t schemes = cuda::CUBLASLT_REDUCTION_SCHEME_MASK;
    std::uint32_t alignment[4] = {256, 256, 256, 256};  // of a, b, c, d: what the library assumes if nobody says less
};

namespace {

using namespace cuda;

// data[0] of an algorithm that came from the heuristic here; data[1] is into how many sums it cuts k, data[2…5] what it
// was promised of addresses, data[6] how the sums are added.
constexpr std::uint64_t algorithm_mark = 0x6b65656c6c74ull;
constexpr int most_splits = 4;
constexpr std::uint64_t workspace_alignment = 256;

cublasStatus_t refuse(const std::string& text) {
    report(Kind::bad_call, "cublasLt: " + text);
    return CUBLAS_STATUS_INVALID_VALUE;
}

bool is_algorithm(const cublasLtMatmulAlgo_t& algo) {
    const std::uint64_t splits = algo.data[1], scheme = algo.data[6];
    const bool adds = scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return algo.data[0] == algorithm_mark && splits >= 1 && splits <= most_splits &&
           (splits == 1 ? scheme == CUBLASLT_REDUCTION_SCHEME_NONE : adds);
}
int splits_of(const cublasLtMatmulAlgo_t& algo) { return static_cast<int>(algo.data[1]); }
cublasLtReductionScheme_t scheme_of(const cublasLtMatmulAlgo_t& algo) {
    return static_cast<cublasLtReductionScheme_t>(algo.data[6]);
}

template <class T>
bool take(T& to, const void* value, std::size_t bytes) {
    if (bytes != sizeof(T)) return false;
    std::memcpy(&to, value, bytes);
    return true;
}

using Sizes = MatmulSizes;
// Whether descriptors and layouts describe one product; reports why not.
bool agree(const MatmulDesc& desc, const MatrixLayout& a, const MatrixLayout& b, const MatrixLayout& c,
           const MatrixLayout& d, Sizes& sizes) {
    sizes = {desc.transpose_a ? a.cols : a.rows, desc.transpose_b ? b.rows : b.cols,
             desc.transpose_a ? a.rows : a.cols};
    const auto no = [&](const std::string& why) {
        refuse(why);
        return false;
    };
    const std::uint64_t b_k = desc.transpose_b ? b.cols : b.rows;
    if (b_k != sizes.k || d.rows != sizes.m || d.cols != sizes.n || c.rows != d.rows || c.cols != d.cols)
        return no("shapes disagree: a " + a.text() + (desc.transpose_a ? " transposed" : "") + ", b " + b.text() +
                  (desc.transpose_b ? " transposed" : "") + ", c " + c.text() + ", d " + d.text());
    if (sizes.m == 0 || sizes.n == 0 || sizes.k == 0)
        return no("a matrix has no elements: a " + a.text() + ", b " + b.text() + ", d " + d.text());
    if (a.type != b.type || c.type != d.type || (a.type != CUDA_R_16BF && a.type != CUDA_R_32F) ||
        (d.type != CUDA_R_32F && d.type != CUDA_R_16BF) || (a.type == CUDA_R_32F && d.type != CUDA_R_32F))
        return no("types " + std::to_string(a.type) + ", " + std::to_string(b.type) + ", " + std::to_string(c.type) +
                  ", " + std::to_string(d.type) +
                  ": a and b are both bf16 or both float, c has the type of d, and float gives float");
    if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS && desc.bias_type >= 0 && desc.bias_type != d.type)
        return no("a bias of type " + std::to_string(desc.bias_type) + "; it must have that of d, " + std::to_string(d.type));
    if (desc.scale != CUDA_R_32F) return no("the scale type of a product accumulated in float32 is float32");
    for (const MatrixLayout* l : {&a, &b, &c, &d})
        if (l->ld < static_cast<std::int64_t>(l->rows))
            return no("a leading dimension is less than the rows: " + l->text());
    if (a.batch != b.batch || a.batch != c.batch || a.batch != d.batch) return no("batch counts disagree");
    return true;
}

bool holds(const char* what, const void* p, std::size_t bytes, std::uint64_t alignment) {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    const Found found = find_allocation(p);
    if (bytes > 0 &&
        (found.place != Place::device || static_cast<const std::byte*>(p) + bytes > found.data + found.bytes)) {
        refuse(std::string(what) + " needs " + std::to_string(bytes) +
               " bytes of device memory, and there are not as many");
        return false;
    }
    if (address % alignment == 0) return true;
    refuse(std::string(what) + " is not aligned to " + std::to_string(alignment) +
           " bytes, as the algorithm was promised (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_*_BYTES, 256 if not set; a bias to 16)");
    return false;
}

}  // namespace

namespace cuda {

const char* cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS:
            return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED:
            return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED:
            return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE:
            return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_EXECUTION_FAILED:
            return "CUBLAS_STATUS_EXECUTION_FAILED";
        case CUBLAS_STATUS_NOT_SUPPORTED:
            return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "CUBLAS_STATUS_?";
}
std::size_t cublasLtGetVersion() { return 130100; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    static char the_handle;
    *handle = &the_handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
    *desc = new MatmulDesc{.compute = compute, .scale = scale};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
    std::int32_t number = 0;
    if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
        return take(desc->bias, value, bytes) ? CUBLAS_STATUS_SUCCESS : refuse("the bias pointer has the wrong size");
    if (!take(number, value, bytes))
        return refuse("attribute " + std::to_string(attribute) + " of a product has 4 bytes");
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA:
            desc->transpose_a = number == CUBLAS_OP_T;
            break;
        case CUBLASLT_MATMUL_DESC_TRANSB:
            desc->transpose_b = number == CUBLAS_OP_T;
            break;
        case CUBLASLT_MATMUL_DESC_POINTER_MODE:
            desc->device_scalars = number == CUBLASLT_POINTER_MODE_DEVICE;
            break;
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
            desc->bias_type = number;
            break;
        case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
            break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE:
            if (number != CUBLASLT_EPILOGUE_DEFAULT && number != CUBLASLT_EPILOGUE_BIAS)
                return CUBLAS_STATUS_NOT_SUPPORTED;
            desc->epilogue = number;
            break;
        default:
            return refuse("attribute " + std::to_string(attribute) + " of a product cannot be set");
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t cols, std::int64_t ld) {
    *layout = new MatrixLayout{.type = type, .rows = rows, .cols = cols, .ld = ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
    bool taken = false;
    std::int32_t order = 0;
    switch (attribute) {
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
            taken = take(layout->batch, value, bytes);
            break;
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
            taken = take(layout->batch_stride, value, bytes);
            break;
        case CUBLASLT_MATRIX_LAYOUT_LD:
            taken = take(layout->ld, value, bytes);
            break;
        case CUBLASLT_MATRIX_LAYOUT_ROWS:
            taken = take(layout->rows, value, bytes);
            break;
        case CUBLASLT_MATRIX_LAYOUT_COLS:
            taken = take(layout->cols, value, bytes);
            break;
        case CUBLASLT_MATRIX_LAYOUT_ORDER:
            taken = take(order, value, bytes) && order == CUBLASLT_ORDER_COL;
            break;
        case CUBLASLT_MATRIX_LAYOUT_TYPE:
            break;
    }
    return taken ? CUBLAS_STATUS_SUCCESS
                 : refuse("attribute " + std::to_string(attribute) + " of a layout cannot be set so");
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    *preference = new MatmulPreference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
    bool taken = false;
    std::uint32_t mask = 0;
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            taken = take(preference->workspace_bytes, value, bytes);
            break;
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            taken = take(preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
            break;
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            taken = take(preference->schemes, value, bytes);
            break;
        case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
            taken = take(mask, value, bytes);
            break;
    }
    return taken ? CUBLAS_STATUS_SUCCESS
                 : refuse("attribute " + std::to_string(attribute) + " of a preference has another size");
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t* results, int* found) {
    Sizes sizes;
    *found = 0;
    if (!agree(*desc, *a, *b, *c, *d, sizes)) return CUBLAS_STATUS_INVALID_VALUE;
    if (wanted < 1) return refuse("no algorithm is asked for");
    const auto offer = [&](int splits, cublasLtReductionScheme_t scheme) {
        const std::size_t need = workspace_of(sizes, d->batch, splits, scheme);
        const bool may =
            splits == 1 || ((preference->schemes & scheme) && sizes.k >= static_cast<std::uint64_t>(splits));
        if (*found == wanted || !may || need > preference->workspace_bytes) return;
        cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
        result = {};
        result.workspaceSize = need;
        result.wavesCount = 1;
        result.algo.data[0] = algorithm_mark;
        result.algo.data[1] = static_cast<std::uint64_t>(splits);
        for (int i = 0; i < 4; ++i) result.algo.data[2 + i] = preference->alignment[i];
        result.algo.data[6] = scheme;
    };
    // Those that need a workspace first, so that whoever offers one has it used; in place first, so that whoever allows
    // it sees its rounding.
    for (int splits = most_splits; splits > 1; splits /= 2)
        for (const auto scheme : {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE})
            offer(splits, scheme);
    offer(1, CUBLASLT_REDUCTION_SCHEME_NONE);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
    Sizes sizes;
    if (!agree(*desc, *a, *b, *c, *d, sizes) || !is_algorithm(*algo)) return CUBLAS_STATUS_INVALID_VALUE;
    result->workspaceSize = workspace_of(sizes, d->batch, splits_of(*algo), scheme_of(*algo));
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}
// There is one algorithm, and it has no tiles.
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t which, void* value,
                                                    std::size_t bytes, std::size_t*) {
    const int value_of = which == CUBLASLT_ALGO_CONFIG_SPLITK_NUM         ? splits_of(*algo)
                         : which == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? scheme_of(*algo)
                                                                          : 0;
    const auto is = static_cast<std::uint32_t>(value_of);
    if (bytes != sizeof is) return refuse("an attribute of an algorithm has another size");
    std::memcpy(value, &is, sizeof is);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
    const InModel in_model;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!on_current_device(stream, "a product", Site::current())) return CUBLAS_STATUS_INVALID_VALUE;
    Sizes sizes;
    if (!agree(*desc, *a_layout, *b_layout, *c_layout, *d_layout, sizes)) return CUBLAS_STATUS_INVALID_VALUE;
    // Without a choice of the caller's the library looks at the pointers itself.
    std::uint64_t promised[4] = {a_layout->element_bytes(), b_layout->element_bytes(), c_layout->element_bytes(),
                                 d_layout->element_bytes()};
    if (algo) {
        if (!is_algorithm(*algo)) return refuse("the algorithm did not come from cublasLtMatmulAlgoGetHeuristic");
        for (int i = 0; i < 4; ++i) promised[i] = algo->data[2 + i];
    }
    const int splits = algo ? splits_of(*algo) : 1;
    const cublasLtReductionScheme_t scheme = algo ? scheme_of(*algo) : CUBLASLT_REDUCTION_SCHEME_NONE;
    if (const std::size_t need = workspace_of(sizes, d_layout->batch, splits, scheme); workspace_bytes < need)
        return refuse("the algorithm needs " + std::to_string(need) + " bytes of workspace, but got " +
                      std::to_string(workspace_bytes));
    if (workspace_bytes > 0 && !holds("the workspace", workspace, workspace_bytes, workspace_alignment))
        return CUBLAS_STATUS_INVALID_VALUE;
    // A vector along the rows of d. The alignment is not documented; kernels of the library move it 16 bytes at a time.
    if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS) {
        if (!desc->bias) return refuse("the epilogue adds a bias, and CUBLASLT_MATMUL_DESC_BIAS_POINTER is not set");
        if (!holds("the bias", desc->bias, sizes.m * d_layout->element_bytes(), 16)) return CUBLAS_STATUS_INVALID_VALUE;
    }
    const bool reads_c = desc->device_scalars || *static_cast<const float*>(beta) != 0;
    if (!holds("a", a, a_layout->span_bytes(), promised[0]) || !holds("b", b, b_layout->span_bytes(), promised[1]) ||
        (reads_c && !holds("c", c, c_layout->span_bytes(), promised[2])) ||
        !holds("d", d, d_layout->span_bytes(), promised[3]))
        return CUBLAS_STATUS_INVALID_VALUE;
    MatmulProduct p{.desc = *desc,
                    .la = *a_layout,
                    .lb = *b_layout,
                    .lc = *c_layout,
                    .ld = *d_layout,
                    .sizes = sizes,
                    .splits = splits,
                    .scheme = scheme,
                    .a = static_cast<const std::byte*>(a),
                    .b = static_cast<const std::byte*>(b),
                    .c = static_cast<const std::byte*>(c),
                    .d = static_cast<std::byte*>(d),
                    .workspace = static_cast<std::byte*>(workspace),
                    .workspace_bytes = workspace_bytes,
                    .alpha = 0,
                    .beta = 0,
                    .alpha_at = nullptr,
                    .beta_at = nullptr};
    if (desc->device_scalars) {
        p.alpha_at = static_cast<const float*>(alpha);
        p.beta_at = static_cast<const float*>(beta);
    } else {
        p.alpha = *static_cast<const float*>(alpha);
        p.beta = *static_cast<const float*>(beta);
    }
    submit_product(stream, p);
    return CUBLAS_STATUS_SUCCESS;
}

}  // namespace cuda
}  // namespace sim
