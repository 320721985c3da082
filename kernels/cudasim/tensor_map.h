// kernels/cudasim/tensor_map.h: tensor maps, which tell bulk copies where a tensor lies in global memory and how a box
// of it lies in shared memory, under the names of the CUDA driver; and the runtime's way to the driver's function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cudasim/runtime.h"

namespace sim {

// What the model keeps in a CUtensorMap. Dim 0 is the innermost.
struct Tiled {
    static constexpr unsigned max_rank = 5;
    std::byte* data;
    std::uint64_t dims[max_rank];
    std::uint64_t strides[max_rank - 1];  // bytes, of dims 1 …
    std::uint16_t box[max_rank];
    std::uint8_t rank, element_bytes;
    std::uint16_t swizzle;  // bytes of its span: 0, 32, 64, 128
    std::uint32_t magic;    // `known` in one that was made
    static constexpr std::uint32_t known = 0x7131e05e;

    std::size_t box_bytes() const;
    std::size_t bytes() const;  // from data to the end of the last element
};

// Where in shared memory what belongs at `offset` lies, under a swizzle of this span: pieces of 16 bytes change places
// within it, by the number of the row of 128 bytes modulo 8, 4 or 2. An exclusive or: its own inverse.
constexpr std::ptrdiff_t swizzled(std::ptrdiff_t offset, unsigned span) {
    if (span == 0) return offset;
    const auto pieces = static_cast<std::ptrdiff_t>(span / 16);
    return offset ^ (offset / 128 % pieces * 16);
}

namespace cuda {

using cuuint32_t = std::uint32_t;
using cuuint64_t = std::uint64_t;
enum CUresult : int { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
struct alignas(64) CUtensorMap {
    cuuint64_t opaque[16];
};
enum CUtensorMapDataType : int {
    CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
    CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1,
    CU_TENSOR_MAP_DATA_TYPE_UINT32 = 2,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
};
enum CUtensorMapInterleave : int { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle : int {
    CU_TENSOR_MAP_SWIZZLE_NONE = 0,
    CU_TENSOR_MAP_SWIZZLE_32B = 1,
    CU_TENSOR_MAP_SWIZZLE_64B = 2,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
};
enum CUtensorMapL2promotion : int { CU_TENSOR_MAP_L2_PROMOTION_NONE = 0, CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2 };
enum CUtensorMapFloatOOBfill : int { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

// Refuses what the driver would, and reports why (the driver does not say).
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill);

enum cudaDriverEntryPointQueryResult : int {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1,
};
constexpr unsigned long long cudaEnableDefault = 0;
// Of the driver's functions there is cuTensorMapEncodeTiled.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result);

}  // namespace cuda
}  // namespace sim
