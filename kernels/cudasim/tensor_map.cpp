#include "kernels/cudasim/tensor_map.h"

#include <cstring>
#include <string>
#include <string_view>

#include "kernels/cudasim/findings.h"

namespace sim {

static_assert(sizeof(Tiled) <= sizeof(cuda::CUtensorMap));

std::size_t Tiled::box_bytes() const {
    std::size_t bytes = element_bytes;
    for (unsigned i = 0; i < rank; ++i) bytes *= box[i];
    return bytes;
}
std::size_t Tiled::bytes() const {
    std::size_t bytes = dims[0] * element_bytes;
    for (unsigned i = 1; i < rank; ++i) bytes += (dims[i] - 1) * strides[i - 1];
    return bytes;
}

namespace cuda {

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    const auto refuse = [](const std::string& why) {
        report(Kind::bad_call, "cuTensorMapEncodeTiled: " + why);
        return CUDA_ERROR_INVALID_VALUE;
    };
    const auto multiple_of = [](const void* p, std::uintptr_t of) {
        return reinterpret_cast<std::uintptr_t>(p) % of == 0;
    };
    if (!map || !multiple_of(map, 64)) return refuse("the map's address must be a multiple of 64");
    if (rank < 1 || rank > Tiled::max_rank) return refuse("rank " + std::to_string(rank) + "; it must be 1 to 5");
    if (!data || !multiple_of(data, 16)) return refuse("the tensor's address must be a multiple of 16");
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return refuse("interleaved layouts and NaN beyond the tensor's ends are not simulated");
    Tiled tiled{};
    tiled.data = static_cast<std::byte*>(data);
    tiled.rank = static_cast<std::uint8_t>(rank);
    switch (type) {
        case CU_TENSOR_MAP_DATA_TYPE_UINT8:
            tiled.element_bytes = 1;
            break;
        case CU_TENSOR_MAP_DATA_TYPE_UINT16:
        case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
            tiled.element_bytes = 2;
            break;
        case CU_TENSOR_MAP_DATA_TYPE_UINT32:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
            tiled.element_bytes = 4;
            break;
        default:
            return refuse("data type " + std::to_string(static_cast<int>(type)) + " is not simulated");
    }
    for (unsigned i = 0; i < rank; ++i) {
        const std::string dim = "dim " + std::to_string(i);
        if (dims[i] < 1 || dims[i] > std::uint64_t{1} << 32)
            return refuse(dim + " is " + std::to_string(dims[i]) + "; it must be 1 to 2^32");
        if (box[i] < 1 || box[i] > 256)
            return refuse("the box is " + std::to_string(box[i]) + " along " + dim + "; it must be 1 to 256");
        if (element_strides[i] != 1) return refuse("element strides other than 1 are not simulated");
        tiled.dims[i] = dims[i];
        tiled.box[i] = static_cast<std::uint16_t>(box[i]);
        if (i == 0) continue;
        if (strides[i - 1] % 16 != 0 || strides[i - 1] >= std::uint64_t{1} << 40)
            return refuse("the stride of " + dim + " is " + std::to_string(strides[i - 1]) +
                          " bytes; it must be a multiple of 16 below 2^40");
        tiled.strides[i - 1] = strides[i - 1];
    }
    const unsigned inner = box[0] * tiled.element_bytes;
    if (inner % 16 != 0) return refuse("a row of the box is " + std::to_string(inner) + " bytes, no multiple of 16");
    tiled.swizzle = static_cast<std::uint16_t>(swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : 16 << swizzle);
    if (tiled.swizzle > 128)
        return refuse("swizzle " + std::to_string(static_cast<int>(swizzle)) + " is not simulated");
    if (tiled.swizzle > 0 && inner > tiled.swizzle)
        return refuse("a row of the box is " + std::to_string(inner) + " bytes, more than the " +
                      std::to_string(tiled.swizzle) + " of its swizzle");
    if (tiled.swizzle > 0 && inner < tiled.swizzle)
        return refuse("rows of a box that are shorter than its swizzle are not simulated");
    tiled.magic = Tiled::known;
    std::memcpy(map, &tiled, sizeof tiled);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    const bool known = std::string_view(name) == "cuTensorMapEncodeTiled";
    *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
    if (result) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

}  // namespace cuda
}  // namespace sim
