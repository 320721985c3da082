// The CUDA bodies of kernels/attention.h, backward: on tensor cores where attention.cu's forward is
// (attention_backward_tiles.cuh, or attention_hopper_backward.cu on a stream that allows it), and here in the form that
// takes every head and every row, float among it: two kernels without atomics.
// With P = e^(scale q.k - lse), delta = dy.y and dS = scale P (dy.v - delta):
//
//   dq       a warp per query and head, a lane per key:         dq += dS k. It also leaves delta in the scratch.
//   dk, dv   a warp per key and kv head, a lane per query:      dk += dS q, dv += P dy, over the heads of the group in
//            order.
//
// Both take 32 of the others at a time; for the sums a lane owns every 32nd element of the head. Where q or k had been
// turned, these leave dq or dk to rope.cu; tiles turn heads as wide as they are themselves.
#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_backward_tiles.cuh"
#include "kernels/cuda_ops.h"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int warps = 4, threads = warps * warp_size;
constexpr int most_head_dim = 256, elements = most_head_dim / warp_size;  // of a lane

// A row of a head to shared memory, each lane its elements; the warp must meet before others read them.
template <class T>
KEEL_INLINE void keep_row(float* to, const T* from, int head_dim) {
    for (int d = lane_of_warp(); d < head_dim; d += warp_size) to[d] = to_float(load(from + d).at[0]);
}
template <class T>
KEEL_INLINE float dot(const float* kept, const T* row, int head_dim) {
    float sum = 0;
    for (int d = 0; d < head_dim; ++d) sum += kept[d] * to_float(load(row + d).at[0]);
    return sum;
}
// This lane's elements of sum += weight * row.
template <class T>
KEEL_INLINE void add_row(float (&sum)[elements], float weight, const T* row, int head_dim) {
#pragma unroll
    for (int e = 0; e < elements; ++e)
        if (const int d = e * warp_size + lane_of_warp(); d < head_dim)
            sum[e] += weight * to_float(load(row + d).at[0]);
}
template <class T>
KEEL_INLINE void store_row(T* to, const float (&sum)[elements], int head_dim) {
#pragma unroll
    for (int e = 0; e < elements; ++e)
        if (const int d = e * warp_size + lane_of_warp(); d < head_dim) store(to + d, {from_float<T>(sum[e])});
}

template <class T>
__global__ void __launch_bounds__(threads) dq_kernel(Backward<T> a) {
    KEEL_SHARED(float, kept_q, [warps][most_head_dim]);
    KEEL_SHARED(float, kept_dy, [warps][most_head_dim]);
    const int i = static_cast<int>(blockIdx.x) * warps + warp_of_block(), head = static_cast<int>(blockIdx.y);
    if (i >= a.tokens) return;  // the whole warp
    const int lane = lane_of_warp();
    const int column = head * a.head_dim, kv_column = head / a.group * a.head_dim;
    float *const q = kept_q[warp_of_block()], *const dy = kept_dy[warp_of_block()];
    keep_row(q, a.q + i * a.q_stride + column, a.head_dim);
    keep_row(dy, a.dy + i * a.dy_stride + column, a.head_dim);
    float delta = 0;
    for (int d = lane; d < a.head_dim; d += warp_size)
        delta += dy[d] * to_float(load(a.y + i * a.y_stride + column + d).at[0]);
    delta = warp_sum(delta);
    const std::int64_t of_row = std::int64_t{head} * a.tokens + i;
    if (lane == 0) store(a.delta + of_row, {delta});
    __syncwarp();
    const float lse = load(a.lse + of_row).at[0];
    const int last = min(a.query_offset + i, a.key_begin + a.kv_tokens - 1);
    float dq[elements] = {};
    for (int key = max(load(a.lo + i).at[0], a.key_begin); key <= last; key += warp_size) {
        const int here = min(last - key + 1, warp_size);  // keys of this round
        float ds = 0;
        if (lane < here) {
            const std::int64_t row = key + lane - a.key_begin;
            const float p = expf(dot(q, a.k + row * a.k_stride + kv_column, a.head_dim) * a.scale - lse);
            ds = p * (dot(dy, a.v + row * a.v_stride + kv_column, a.head_dim) - delta) * a.scale;
        }
        for (int n = 0; n < here; ++n)
            add_row(dq, __shfl_sync(all_lanes, ds, n), a.k + (key + n - a.key_begin) * a.k_stride + kv_column,
                    a.head_dim);
    }
    store_row(a.dq + i * a.dq_stride + column, dq, a.head_dim);
}

template <class T>
__global__ void __launch_bounds__(threads) dkv_kernel(Backward<T> a) {
    KEEL_SHARED(float, kept_k, [warps][most_head_dim]);
    KEEL_SHARED(float, kept_v, [warps][most_head_dim]);
    const int row = static_cast<int>(blockIdx.x) * warps + warp_of_block(), kv_head = static_cast<int>(blockIdx.y);
    if (row >= a.kv_tokens) return;  // the whole warp
    const int lane = lane_of_warp();
    const int kv_column = kv_head * a.head_dim, key = a.key_begin + row;
    float *const k = kept_k[warp_of_block()], *const v = kept_v[warp_of_block()];
    // A key that nobody sees may hold anything; it is read, but nothing is made of it.
    keep_row(k, a.k + row * a.k_stride + kv_column, a.head_dim);
    keep_row(v, a.v + row * a.v_stride + kv_column, a.head_dim);
    __syncwarp();
    float dk[elements] = {}, dv[elements] = {};
#pragma unroll 1
    for (int head = kv_head * a.group; head < (kv_head + 1) * a.group; ++head) {
        const int column = head * a.head_dim;
#pragma unroll 1
        for (int first = max(key - a.query_offset, 0); first < a.tokens; first += warp_size) {
            // All lanes compute, those that do not see the key for nothing: lanes that part would have to meet again,
            // and the registers for that are few.
            const int i = min(first + lane, a.tokens - 1);
            const bool sees = first + lane < a.tokens && load(a.lo + i).at[0] <= key;
            const std::int64_t of_row = std::int64_t{head} * a.tokens + i;
            const float score = dot(k, a.q + i * a.q_stride + column, a.head_dim) * a.scale;
            const float p = sees ? expf(score - load(a.lse + of_row).at[0]) : 0.0f;
            const float dp = dot(v, a.dy + i * a.dy_stride + column, a.head_dim) - load(a.delta + of_row).at[0];
            const float ds = sees ? p * dp * a.scale : 0.0f;
#pragma unroll 1
            for (unsigned seeing = __ballot_sync(all_lanes, sees); seeing;
                 seeing &= seeing - 1) {  // alike for all lanes
                const int n = __ffs(static_cast<int>(seeing)) - 1;
                const float ds_n = __shfl_sync(all_lanes, ds, n), p_n = __shfl_sync(all_lanes, p, n);
                add_row(dk, ds_n, a.q + (first + n) * a.q_stride + column, a.head_dim);
                add_row(dv, p_n, a.dy + (first + n) * a.dy_stride + column, a.head_dim);
            }
        }
    }
    store_row(a.dk + row * a.dk_stride + kv_column, dk, a.head_dim);
    store_row(a.dv + row * a.dv_stride + kv_column, dv, a.head_dim);
}

template <class T>
Backward<in_kernel<T>> arguments(const AttentionBackward<T>& args) {
    const std::int64_t tokens = args.q.dim(0), kv_tokens = args.k.dim(0), heads = args.q.dim(1) / args.head_dim;
    const std::int64_t kv_heads = args.k.dim(1) / args.head_dim;
    float* const delta = reinterpret_cast<float*>(args.scratch.data());
    return {.dq = kernel_pointer(args.dq),
            .dk = kernel_pointer(args.dk),
            .dv = kernel_pointer(args.dv),
            .delta = delta,
            .tile_bounds = reinterpret_cast<Bounds*>(delta + heads * tokens),
            .dy = kernel_pointer(args.dy),
            .y = kernel_pointer(args.y),
            .lse = args.lse.data(),
            .q = kernel_pointer(args.q),
            .k = kernel_pointer(args.k),
            .v = kernel_pointer(args.v),
            .lo = args.lo.data(),
            .dq_stride = args.dq.stride(),
            .dk_stride = args.dk.stride(),
            .dv_stride = args.dv.stride(),
            .dy_stride = args.dy.stride(),
            .y_stride = args.y.stride(),
            .q_stride = args.q.stride(),
            .k_stride = args.k.stride(),
            .v_stride = args.v.stride(),
            .tokens = static_cast<int>(tokens),
            .kv_tokens = static_cast<int>(kv_tokens),
            .heads = static_cast<int>(heads),
            .group = static_cast<int>(heads / kv_heads),
            .head_dim = static_cast<int>(args.head_dim),
            .query_offset = static_cast<int>(args.query_offset),
            .key_begin = static_cast<int>(args.key_begin),
            .scale = args.scale};
}

// For the kernels whose tiles are as wide as what turns.
Angles in_tiles(const std::optional<RopeAngles>& angles, std::int64_t head_dim) {
    if (!angles || angles->table.dim(1) != head_dim || (head_dim != 64 && head_dim != 128)) return {};
    if (!in_vectors_of(2, angles->table.data(), head_dim)) return {};
    return {angles->table.data(), angles->positions.data()};
}

template <class T>
void backward_any(Stream& stream, const Backward<T>& a) {
    const auto go = [&](auto* kernel, std::int64_t rows, std::int64_t columns) {
        if (rows > 0)
            launch(stream,
                   {.blocks = {static_cast<unsigned>(ceil_div(rows, warps)), static_cast<unsigned>(columns)},
                    .threads = threads},
                   kernel, a);
    };
    go(dq_kernel<T>, a.tokens, a.heads);
    go(dkv_kernel<T>, a.kv_tokens, a.heads / a.group);
}

// What the kernels did not turn, where they wrote it.
template <class T>
void turn_others(Stream& stream, const AttentionBackward<T>& args, const Backward<in_kernel<T>>& a) {
    const auto turn_back = [&](View<T> x, const std::optional<RopeAngles>& angles, const Angles& turned) {
        if (angles && !turned.table)
            run(stream, RopeTurn<T>{{x, angles->table, angles->positions, args.head_dim}, -1.0f});
    };
    turn_back(args.dq, args.q_rope, a.q_rope);
    turn_back(args.dk, args.k_rope, a.k_rope);
}

}  // namespace

// attention_hopper_backward.cu; where it is built.
void attention_backward_hopper(Stream& stream, const AttentionBackward<bf16>& args, const Backward<__nv_bfloat16>& a);

template <>
void run(Stream& stream, const AttentionBackward<float>& args) {
    const auto a = arguments(args);
    backward_any(stream, a);
    turn_others(stream, args, a);
}
template <>
void run(Stream& stream, const AttentionBackward<bf16>& args) {
    bool aligned = args.head_dim % 8 == 0;
    for (const auto& view : {View<const bf16>(args.dq), View<const bf16>(args.dk), View<const bf16>(args.dv), args.dy,
                             args.y, args.q, args.k, args.v})
        aligned = aligned && in_vectors_of(8, view.data(), view.stride());
    auto a = arguments(args);
    if (!aligned || args.head_dim > 128 || !(args.scale > 0)) {
        backward_any(stream, a);
    } else {
        a.q_rope = in_tiles(args.q_rope, args.head_dim), a.k_rope = in_tiles(args.k_rope, args.head_dim);
#if KEEL_HOPPER || !defined(__CUDACC__)
        if (stream.hopper() && a.tokens > 0 && a.kv_tokens > 0) {
            backward_tiles::prepare<64>(stream, a);
            attention_backward_hopper(stream, args, a);
        } else
#endif
            (args.head_dim <= 64 ? backward_tiles::run<64> : backward_tiles::run<128>)(stream, a);
    }
    turn_others(stream, args, a);
}

}  // namespace keel::KEEL_DEVICE
