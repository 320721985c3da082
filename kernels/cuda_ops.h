// kernels/cuda_ops.h: how an op reaches its CUDA body. op.cpp checks, then says `if (run_on_device(stream, args))
// return;`.
//
// A CUDA body is a specialisation of `run` for the op's struct of arguments, in op.cu, in namespace keel::KEEL_DEVICE.
// The file is compiled by nvcc into on_cuda and by the host compiler into on_cudasim (docs/cudasim.md); the stream's
// device says which one runs. An op that never calls run_on_device cannot run on a device by accident: its CPU body
// asks the stream for a crew, and such a stream has none.
#pragma once

#include <type_traits>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/stream.h"

namespace keel {

namespace on_cuda {
template <class Args>
void run(Stream& stream, const Args& args);
}
namespace on_cudasim {
template <class Args>
void run(Stream& stream, const Args& args);
}

// Arguments with f16 among their types: the CPU's alone.
template <class Args>
constexpr bool has_f16 = false;
template <template <class...> class Op, class... T>
constexpr bool has_f16<Op<T...>> = (std::is_same_v<T, f16> || ...);

// True if the op was queued on the stream's device; false if the stream is the CPU's.
template <class Args>
bool run_on_device(Stream& stream, [[maybe_unused]] const Args& args) {
    if constexpr (has_f16<Args>) {
        if (stream.device() != Device::cpu) fail("f16 is a type of the CPU's ops; a GPU computes in bf16 or f32");
        return false;
    }
    switch (stream.device()) {
        case Device::cpu:
            return false;
        case Device::cuda:
#if KEEL_CUDA
            on_cuda::run(stream, args);
            return true;
#else
            fail("this keel was built without a CUDA toolkit");
#endif
        case Device::cudasim:
#if KEEL_CUDASIM
            on_cudasim::run(stream, args);
            return true;
#else
            fail("this library of kernels was built without cudasim");
#endif
    }
    return false;
}

}  // namespace keel
