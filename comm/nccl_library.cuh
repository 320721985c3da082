// comm/nccl_library.cuh: NCCL's functions, found at run time under nvcc, so that keel starts where there is no NCCL;
// under cudasim they are the model's own.
#pragma once

#include <nccl.h>

#include <optional>
#include <string>

#include "kernels/device.cuh"
#if defined(__CUDACC__)
#include <dlfcn.h>
#endif

namespace keel::KEEL_DEVICE {

#define KEEL_NCCL_FUNCTIONS(F)                                                                          \
    F(ncclGetVersion)                                                                                   \
    F(ncclGetErrorString)                                                                               \
    F(ncclGetUniqueId) F(ncclCommInitRankConfig) F(ncclCommDestroy) F(ncclCommAbort) F(ncclCommGetAsyncError) \
        F(ncclGroupStart) F(ncclGroupEnd) F(ncclAllGather) F(ncclBroadcast) F(ncclSend) F(ncclRecv)

// nccl().ncclSend(...): each member is the function of its name.
struct Nccl {
    std::string missing;  // why it cannot be used; empty if it can
#if defined(__CUDACC__)
#define KEEL_MEMBER(name) decltype(&::name) name = nullptr;
#else
#define KEEL_MEMBER(name)               \
    template <class... Arguments>       \
    static auto name(Arguments... of) { \
        return ::name(of...);           \
    }
#endif
    KEEL_NCCL_FUNCTIONS(KEEL_MEMBER)
#undef KEEL_MEMBER
};

inline const Nccl& nccl() {
    static const Nccl table = [] {
        Nccl t;
#if defined(__CUDACC__)
        const char* const library = "libnccl.so.2";
        void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            t.missing = concat(dlerror(), "; install NCCL 2 or add its folder to LD_LIBRARY_PATH");
            return t;
        }
#define KEEL_FIND(name)                                                \
    t.name = reinterpret_cast<decltype(t.name)>(dlsym(handle, #name)); \
    if (!t.name) t.missing = concat(library, " has no function " #name);
        KEEL_NCCL_FUNCTIONS(KEEL_FIND)
#undef KEEL_FIND
#endif
        return t;
    }();
    return table;
}

inline void check(ncclResult_t result, std::source_location where = std::source_location::current()) {
    if (result != ncclSuccess) fail(Located(concat("nccl: ", nccl().ncclGetErrorString(result)), where));
}

// Calls between its construction and end() go on together. Whatever ends the scope, the group is closed.
class NcclTogether {
public:
    NcclTogether() { check(nccl().ncclGroupStart()); }
    NcclTogether(const NcclTogether&) = delete;
    NcclTogether& operator=(const NcclTogether&) = delete;
    ~NcclTogether() {
        if (open_) (void)nccl().ncclGroupEnd();  // why the scope ends is known, and worth more
    }
    // Of a call inside: what goes on in the background is waited for at the end.
    static void add(ncclResult_t result, std::source_location where = std::source_location::current()) {
        if (result != ncclInProgress) check(result, where);
    }
    ncclResult_t end() {
        open_ = false;
        return nccl().ncclGroupEnd();
    }

private:
    bool open_ = true;
};

}  // namespace keel::KEEL_DEVICE
