// kernels/cudasim/nccl_sum.h: reductions over ranks in the order of ranks; bf16 is summed in float and rounded once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cudasim/bf16.h"
#include "kernels/cudasim/nccl.h"

namespace sim {

inline std::size_t element_bytes(cuda::ncclDataType_t type) {  // 0: not simulated
    switch (type) {
        case cuda::ncclInt8:
        case cuda::ncclUint8:
            return 1;
        case cuda::ncclBfloat16:
            return 2;
        case cuda::ncclInt32:
        case cuda::ncclUint32:
        case cuda::ncclFloat32:
            return 4;
        case cuda::ncclInt64:
        case cuda::ncclUint64:
        case cuda::ncclFloat64:
            return 8;
        case cuda::ncclFloat16:
            return 0;
    }
    return 0;
}

// T is what memory holds, S what is summed.
template <class T, class S>
void reduce_as(std::byte* out, const std::vector<const std::byte*>& in, std::size_t count, cuda::ncclRedOp_t op) {
    const auto at = [&](std::size_t rank, std::size_t i) {
        T x;
        std::memcpy(&x, in[rank] + i * sizeof(T), sizeof(T));
        return static_cast<S>(x);
    };
    for (std::size_t i = 0; i < count; ++i) {
        S total = at(0, i);
        for (std::size_t r = 1; r < in.size(); ++r) {
            const S x = at(r, i);
            switch (op) {
                case cuda::ncclSum:
                case cuda::ncclAvg:
                    total = static_cast<S>(total + x);
                    break;
                case cuda::ncclProd:
                    total = static_cast<S>(total * x);
                    break;
                case cuda::ncclMax:
                    total = std::max(total, x);
                    break;
                case cuda::ncclMin:
                    total = std::min(total, x);
                    break;
            }
        }
        if (op == cuda::ncclAvg) total = static_cast<S>(total / static_cast<S>(in.size()));
        const T result = static_cast<T>(total);
        std::memcpy(out + i * sizeof(T), &result, sizeof(T));
    }
}

inline void reduce_in_order(std::byte* out, const std::vector<const std::byte*>& in, std::size_t count,
                            cuda::ncclDataType_t type, cuda::ncclRedOp_t op) {
    switch (type) {
        case cuda::ncclInt8:
            return reduce_as<std::int8_t, std::int8_t>(out, in, count, op);
        case cuda::ncclUint8:
            return reduce_as<std::uint8_t, std::uint8_t>(out, in, count, op);
        case cuda::ncclInt32:
            return reduce_as<std::int32_t, std::int32_t>(out, in, count, op);
        case cuda::ncclUint32:
            return reduce_as<std::uint32_t, std::uint32_t>(out, in, count, op);
        case cuda::ncclInt64:
            return reduce_as<std::int64_t, std::int64_t>(out, in, count, op);
        case cuda::ncclUint64:
            return reduce_as<std::uint64_t, std::uint64_t>(out, in, count, op);
        case cuda::ncclFloat32:
            return reduce_as<float, float>(out, in, count, op);
        case cuda::ncclFloat64:
            return reduce_as<double, double>(out, in, count, op);
        case cuda::ncclBfloat16:
            return reduce_as<cuda::__nv_bfloat16, float>(out, in, count, op);
        case cuda::ncclFloat16:
            return;
    }
}

}  // namespace sim
