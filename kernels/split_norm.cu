// The CUDA bodies of kernels/split_norm.h: a warp takes one row. Backward sums dgain over the slices of tokens of
// kernels/tiles.h: a thread owns a column and walks down its slice, then a second kernel adds the slices in a tree of fixed shape.
#include "kernels/cuda_ops.h"
#include "kernels/norm.cuh"
#include "kernels/split_norm.h"
#include "kernels/tiles.h"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int warps = 8, threads = warps * warp_size;

KEEL_INLINE std::int64_t row_of_warp() {
    return std::int64_t{blockIdx.x} * warps + static_cast<int>(threadIdx.x) / warp_size;
}
KEEL_INLINE int lane_of_warp() { return static_cast<int>(threadIdx.x) % warp_size; }

template <class T>
__global__ void __launch_bounds__(threads)
    squares_kernel(float* sums, const T* x, std::int64_t x_stride, std::int64_t tokens, int columns) {
    const std::int64_t row = row_of_warp();
    if (row >= tokens) return;  // the whole warp
    x += row * x_stride;
    float squares = 0;
    for (int i = lane_of_warp(); i < columns; i += warp_size) {
        const float v = to_float(load(x + i).at[0]);
        squares += v * v;
    }
    squares = warp_sum(squares);
    if (lane_of_warp() == 0) store(sums + row, {squares});
}

// y may be x: a lane reads its elements before it writes them. All lanes read the sum before one writes rstd over it.
template <class T>
__global__ void __launch_bounds__(threads)
    forward_kernel(T* y, float* rstd, const T* x, const T* gain, std::int64_t y_stride, std::int64_t x_stride,
                   std::int64_t tokens, int columns, float width, float eps) {
    const std::int64_t row = row_of_warp();
    if (row >= tokens) return;
    x += row * x_stride;
    y += row * y_stride;
    const float scale = 1.0f / sqrtf(load(rstd + row).at[0] / width + eps);
    __syncwarp();
    if (lane_of_warp() == 0) store(rstd + row, {scale});
    for (int i = lane_of_warp(); i < columns; i += warp_size) {
        const float normed = rounded<T>(to_float(load(x + i).at[0]) * scale);
        store(y + i, {from_float<T>(normed * to_float(load(gain + i).at[0]))});
    }
}

template <class T>
__global__ void __launch_bounds__(threads)
    dots_kernel(float* sums, const T* dy, const T* x, const T* gain, const float* rstd, std::int64_t dy_stride,
                std::int64_t x_stride, std::int64_t tokens, int columns) {
    const std::int64_t row = row_of_warp();
    if (row >= tokens) return;
    x += row * x_stride;
    dy += row * dy_stride;
    float dot = 0;
    for (int i = lane_of_warp(); i < columns; i += warp_size)
        dot += to_float(load(dy + i).at[0]) * to_float(load(gain + i).at[0]) * to_float(load(x + i).at[0]);
    dot = warp_sum(dot) * load(rstd + row).at[0];
    if (lane_of_warp() == 0) store(sums + row, {dot});
}

// dx may be dy. partial[slice, :] = sum over the slice's tokens of dy * x * rstd.
template <class T>
__global__ void __launch_bounds__(threads)
    backward_kernel(T* dx, float* partial, const T* dy, const T* x, const T* gain, const float* rstd, const float* sums,
                    std::int64_t dx_stride, std::int64_t dy_stride, std::int64_t x_stride, std::int64_t tokens,
                    std::int64_t slice_tokens, int columns, float width) {
    const int i = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
    if (i >= columns) return;
    const std::int64_t slice = blockIdx.y, begin = slice * slice_tokens,
                       stop = begin + slice_tokens < tokens ? begin + slice_tokens : tokens;
    const float g = to_float(load(gain + i).at[0]);
    float total = 0;
    for (std::int64_t row = begin; row < stop; ++row) {
        const float scale = load(rstd + row).at[0], mean = load(sums + row).at[0] / width;
        const float d = to_float(load(dy + row * dy_stride + i).at[0]);
        const float normed = to_float(load(x + row * x_stride + i).at[0]) * scale;
        total += d * normed;
        store(dx + row * dx_stride + i, {from_float<T>((d * g - normed * mean) * scale)});
    }
    store(partial + slice * columns + i, {total});
}

unsigned blocks_of_rows(std::int64_t tokens) { return static_cast<unsigned>(ceil_div(tokens, warps)); }

template <class T>
void go(Stream& stream, const SplitNormSquares<T>& a) {
    if (a.x.dim(0) == 0) return;
    launch(stream, {.blocks = blocks_of_rows(a.x.dim(0)), .threads = threads}, squares_kernel<in_kernel<T>>,
           a.sums.data(), kernel_pointer(a.x), a.x.stride(), a.x.dim(0), static_cast<int>(a.x.dim(1)));
}
template <class T>
void go(Stream& stream, const SplitNormForward<T>& a) {
    if (a.x.dim(0) == 0) return;
    launch(stream, {.blocks = blocks_of_rows(a.x.dim(0)), .threads = threads}, forward_kernel<in_kernel<T>>,
           kernel_pointer(a.y), a.rstd.data(), kernel_pointer(a.x), kernel_pointer(a.gain), a.y.stride(), a.x.stride(),
           a.x.dim(0), static_cast<int>(a.x.dim(1)), static_cast<float>(a.width), a.eps);
}
template <class T>
void go(Stream& stream, const SplitNormDots<T>& a) {
    if (a.x.dim(0) == 0) return;
    launch(stream, {.blocks = blocks_of_rows(a.x.dim(0)), .threads = threads}, dots_kernel<in_kernel<T>>, a.sums.data(),
           kernel_pointer(a.dy), kernel_pointer(a.x), kernel_pointer(a.gain), a.rstd.data(), a.dy.stride(),
           a.x.stride(), a.x.dim(0), static_cast<int>(a.x.dim(1)));
}
template <class T>
void go(Stream& stream, const SplitNormBackward<T>& a) {
    if (a.x.dim(0) == 0) return;
    const TokenSlices slices(a.x.dim(0));
    float* const partial = reinterpret_cast<float*>(a.scratch.data());
    launch(stream,
           {.blocks = {static_cast<unsigned>(ceil_div(a.x.dim(1), threads)), static_cast<unsigned>(slices.count())},
            .threads = threads},
           backward_kernel<in_kernel<T>>, kernel_pointer(a.dx), partial, kernel_pointer(a.dy), kernel_pointer(a.x),
           kernel_pointer(a.gain), a.rstd.data(), a.sums.data(), a.dx.stride(), a.dy.stride(), a.x.stride(), a.x.dim(0),
           slices.begin(1), static_cast<int>(a.x.dim(1)), static_cast<float>(a.width));
    add_partials(stream, a.dgain.data(), partial, slices.count(), a.x.dim(1));
}

}  // namespace

#define KEEL_RUN(Args)                               \
    template <>                                      \
    void run(Stream& stream, const Args<float>& a) { \
        go(stream, a);                               \
    }                                                \
    template <>                                      \
    void run(Stream& stream, const Args<bf16>& a) {  \
        go(stream, a);                               \
    }
KEEL_RUN(SplitNormSquares)
KEEL_RUN(SplitNormForward)
KEEL_RUN(SplitNormDots)
KEEL_RUN(SplitNormBackward)
#undef KEEL_RUN

}  // namespace keel::KEEL_DEVICE
