// kernels/tensor_map.cuh: tensor maps for bulk copies (kernels/hopper.cuh), made on the host. The driver's function is
// found at run time: a keel that links libcuda would not start where there is no driver.
//
// A map is a kernel's parameter, `const __grid_constant__ CUtensorMap`, and good as long as the tensor stays where it
// is.
#pragma once

#include <cuda.h>

#include "kernels/device.cuh"

namespace keel::KEEL_DEVICE {

inline auto tensor_map_encoder() {
    using Encode = decltype(&cuTensorMapEncodeTiled);
    static const Encode encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found{};
        check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
        if (found != cudaDriverEntryPointSuccess)
            fail("cuda: this driver has no cuTensorMapEncodeTiled; it came with CUDA 12.0");
        return reinterpret_cast<Encode>(function);
    }();
    return encode;
}

// dims, innermost first, and the box that one copy moves, in elements; strides of dims 1 …, in elements. Rows of the
// box are as long as the swizzle's span, if there is one. Data and strides are multiples of 16 bytes.
template <class T, std::size_t rank>
CUtensorMap tensor_map(const T* data, const std::int64_t (&dims)[rank], const std::int64_t (&strides)[rank - 1],
                       const unsigned (&box)[rank], CUtensorMapSwizzle swizzle) {
    static_assert(std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, float>);
    cuuint64_t sizes[rank], pitches[rank];
    cuuint32_t boxes[rank], steps[rank];
    for (std::size_t i = 0; i < rank; ++i) {
        sizes[i] = static_cast<cuuint64_t>(dims[i]);
        boxes[i] = box[i];
        steps[i] = 1;
        if (i + 1 < rank) pitches[i] = static_cast<cuuint64_t>(strides[i]) * sizeof(T);
    }
    CUtensorMap map;
    const CUresult result = tensor_map_encoder()(
        &map, std::is_same_v<T, float> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        static_cast<cuuint32_t>(rank), const_cast<T*>(data), sizes, pitches, boxes, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        fail("cuda: cuTensorMapEncodeTiled refused a tensor of rank ", rank, " with rows of ", dims[0],
             " elements and a box of ", box[0], " by ", box[1], ": error ", static_cast<int>(result));
    return map;
}

}  // namespace keel::KEEL_DEVICE
