// The CUDA bodies of kernels/copy.h: the runtime's own copies and fills.
#include "kernels/copy.h"

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

namespace keel::KEEL_DEVICE {
namespace {

cudaStream_t native(Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }
std::size_t size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }

}  // namespace

template <>
void run(Stream& stream, const CopyRows& a) {
    if (a.rows == 1)
        check(cudaMemcpyAsync(a.to, a.from, size(a.row_bytes), cudaMemcpyDeviceToDevice, native(stream)));
    else
        check(cudaMemcpy2DAsync(a.to, size(a.to_stride), a.from, size(a.from_stride), size(a.row_bytes), size(a.rows),
                                cudaMemcpyDeviceToDevice, native(stream)));
}
template <>
void run(Stream& stream, const ClearRows& a) {
    if (a.rows == 1)
        check(cudaMemsetAsync(a.x, 0, size(a.row_bytes), native(stream)));
    else
        check(cudaMemset2DAsync(a.x, size(a.stride), 0, size(a.row_bytes), size(a.rows), native(stream)));
}

}  // namespace keel::KEEL_DEVICE
