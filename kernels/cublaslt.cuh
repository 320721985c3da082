// kernels/cublaslt.cuh: cublasLt's functions, found at run time under nvcc: the library is half a gigabyte, and a keel
// without it must start and train on the CPU. Under cudasim they are the model's own.
#pragma once

#include <cublasLt.h>

#include "kernels/base/error.h"
#include "kernels/device.cuh"
#if defined(__CUDACC__)
#include <dlfcn.h>
#endif

namespace keel::KEEL_DEVICE {

#define KEEL_CUBLASLT_FUNCTIONS(F)                                                                               \
    F(cublasLtCreate)                                                                                            \
    F(cublasLtDestroy) F(cublasLtGetVersion) F(cublasLtGetStatusString) F(cublasLtMatmulDescCreate)              \
        F(cublasLtMatmulDescDestroy) F(cublasLtMatmulDescSetAttribute) F(cublasLtMatrixLayoutCreate)             \
            F(cublasLtMatrixLayoutDestroy) F(cublasLtMatrixLayoutSetAttribute) F(cublasLtMatmulPreferenceCreate) \
                F(cublasLtMatmulPreferenceDestroy) F(cublasLtMatmulPreferenceSetAttribute)                       \
                    F(cublasLtMatmulAlgoGetHeuristic) F(cublasLtMatmulAlgoCheck) F(cublasLtMatmulAlgoConfigGetAttribute) \
                    F(cublasLtMatmul)

// cublaslt().cublasLtMatmul(...): each member is the function of its name.
struct CublasLt {
#define KEEL_MEMBER(name) decltype(&::name) name = nullptr;
    KEEL_CUBLASLT_FUNCTIONS(KEEL_MEMBER)
#undef KEEL_MEMBER
};

inline const CublasLt& cublaslt() {
    static const CublasLt table = [] {
        CublasLt t;
#if defined(__CUDACC__)
        // The major version is that of the headers: structures passed by pointer must agree.
        const std::string library = concat("libcublasLt.so.", CUBLAS_VER_MAJOR);
        void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            fail("cuda: ", dlerror(), "; install cuBLAS ", CUBLAS_VER_MAJOR, " or add its folder to LD_LIBRARY_PATH");
#define KEEL_FIND(name)                                                \
    t.name = reinterpret_cast<decltype(t.name)>(dlsym(handle, #name)); \
    if (!t.name) fail("cuda: ", library, " has no function " #name);
#else
#define KEEL_FIND(name) t.name = &::name;
#endif
        KEEL_CUBLASLT_FUNCTIONS(KEEL_FIND)
#undef KEEL_FIND
        return t;
    }();
    return table;
}

inline void check(cublasStatus_t status, std::source_location where = std::source_location::current()) {
    if (status != CUBLAS_STATUS_SUCCESS)
        fail(Located(concat("cublasLt: ", cublaslt().cublasLtGetStatusString(status)), where));
}

}  // namespace keel::KEEL_DEVICE
