// The computations of conformance.h. A new wrapper gets a kernel here, and a line at the end.
#include "tests/sim/conformance.h"

#include "kernels/async.cuh"
#include "kernels/device.cuh"
#include "kernels/mma.cuh"

namespace keel::KEEL_DEVICE {
namespace {

using Word = std::uint32_t;
constexpr int words = 1024;  // of input and of output

// A bf16 of a small integer, -8 … 7, from any bits.
KEEL_INLINE Word small_pair(Word x) {
    return pack_bf16(static_cast<float>(static_cast<int>(x % 16) - 8),
                     static_cast<float>(static_cast<int>(x / 16 % 16) - 8));
}
KEEL_INLINE Word bits(float x) { return __float_as_uint(x); }

__global__ void mma(Word* out, const Word* in) {
    const Word lane = threadIdx.x;
    Word a[4];
    float d[4];
#pragma unroll
    for (Word i = 0; i < 4; ++i)
        a[i] = small_pair(in[4 * lane + i]), d[i] = static_cast<float>(in[128 + 4 * lane + i] % 100);
    mma_bf16(d, a, small_pair(in[256 + 2 * lane]), small_pair(in[257 + 2 * lane]));
#pragma unroll
    for (Word i = 0; i < 4; ++i) out[4 * lane + i] = bits(d[i]);
}

// which: 0 x4, 1 x4.trans, 2 x2, 3 x2.trans
template <int which>
__global__ void load_matrices(Word* out, const Word* in) {
    KEEL_SHARED(Word, tile, [128]);
    const Word lane = threadIdx.x;
#pragma unroll
    for (Word i = 0; i < 4; ++i) tile[lane + 32 * i] = in[lane + 32 * i];
    __syncwarp();
    Word r[4] = {}, two[2] = {};
    const Word* row = tile + (lane * 5 % 32) * 4;  // rows in another order than lanes
    if (which == 0) ldmatrix_x4(r, row);
    if (which == 1) ldmatrix_x4_trans(r, row);
    if (which == 2) ldmatrix_x2(two, row);
    if (which == 3) ldmatrix_x2_trans(two, row);
#pragma unroll
    for (Word i = 0; i < 4; ++i) out[4 * lane + i] = which < 2 ? r[i] : i < 2 ? two[i] : 0;
}

__global__ void copies(Word* out, const Word* in) {
    KEEL_SHARED(Word, tile, [2][128]);
    const Word lane = threadIdx.x;
    cp_async_16(&tile[0][4 * lane], in + 4 * lane, lane % 3 != 0);  // every third becomes zero
    cp_async_commit();
#pragma unroll
    for (Word i = 0; i < 4; ++i) cp_async_4(&tile[1][4 * lane + i], in + 128 + 4 * lane + i, (lane + i) % 5 != 0);
    cp_async_commit();
    cp_async_wait<1>();
    __syncwarp();
    const Word first = tile[0][127 - lane];
    cp_async_wait<0>();
    __syncwarp();
    out[lane] = first;
    out[32 + lane] = tile[1][(lane * 7) % 128];
}

__global__ void shuffles(Word* out, const Word* in) {
    const Word lane = threadIdx.x, x = in[lane];
    out[lane] = __shfl_sync(all_lanes, x, static_cast<int>(lane * 3 + 1), 8);
    out[32 + lane] = __shfl_up_sync(all_lanes, x, 3, 16);
    out[64 + lane] = __shfl_down_sync(all_lanes, x, 5, 16);
    out[96 + lane] = __shfl_xor_sync(all_lanes, x, 20, 16);
    out[128 + lane] = __ballot_sync(all_lanes, x & 1u);
    out[160 + lane] = __match_any_sync(all_lanes, x % 4);
    out[192 + lane] =
        __reduce_add_sync(all_lanes, x % 1000u) + __reduce_max_sync(all_lanes, x) + __reduce_min_sync(all_lanes, x);
}

__global__ void conversions(Word* out, const Word* in) {
    const Word lane = threadIdx.x;
    for (Word i = lane; i < 256; i += 32) {
        const float x = __uint_as_float(in[i]);  // any bits: subnormals, infinities, NaN
        out[i] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
        out[256 + i] = pack_bf16(x, __uint_as_float(in[i + 256]));
        out[512 + i] = bits(__bfloat162float(__ushort_as_bfloat16(static_cast<unsigned short>(in[i]))));
    }
    // Powers of two are exact, and what would be subnormal is zero.
    out[768 + lane] = bits(fast_exp2(static_cast<float>(static_cast<int>(lane) * 9 - 150)));
}

__global__ void named_barriers(Word* out, const Word* in) {
    KEEL_SHARED(Word, tile, [64]);
    const Word i = threadIdx.x;
    if (i < 64) {
        tile[i] = in[i];
        barrier_arrive(3, 128);
        barrier_sync(4, 128);
    } else {
        barrier_sync(3, 128);
        out[i - 64] = tile[127 - i];
        barrier_sync(4, 128);
    }
}

std::uint64_t hash(const std::vector<Word>& x) {  // FNV-1a
    std::uint64_t h = 0xcbf29ce484222325u;
    for (const Word w : x)
        for (int byte = 0; byte < 4; ++byte) h = (h ^ (w >> 8 * byte & 0xffu)) * 0x100000001b3u;
    return h;
}

}  // namespace

std::vector<Conformance> conformance() {
    std::vector<Word> input(words), output(words);
    Word state = 12345;
    for (Word& w : input) w = state = state * 1664525u + 1013904223u;
    // The corners of float: zeros, one, a tie, infinities, NaN, the largest and the smallest.
    const Word corners[] = {0,           0x80000000u, 0x3f800000u, 0x3f808000u, 0x3f818000u, 0x7f800000u,
                            0xff800000u, 0x7fc00000u, 0xffc12345u, 0x7f7fffffu, 0x00000001u, 0x007fffffu};
    for (std::size_t i = 0; i < std::size(corners); ++i) input[i + 200] = corners[i];
    Word *in = nullptr, *out = nullptr;
    check(cudaMalloc(&in, words * sizeof(Word)));
    check(cudaMalloc(&out, words * sizeof(Word)));
    check(cudaMemcpy(in, input.data(), words * sizeof(Word), cudaMemcpyHostToDevice));
    std::vector<Conformance> all;
    const auto run = [&](const char* name, void (*kernel)(Word*, const Word*), unsigned threads = 32) {
        check(cudaMemset(out, 0, words * sizeof(Word)));
        cudaLaunchConfig_t config{};
        config.gridDim = 1;
        config.blockDim = threads;
        check(cudaLaunchKernelEx(&config, kernel, out, static_cast<const Word*>(in)));
        check(cudaMemcpy(output.data(), out, words * sizeof(Word), cudaMemcpyDeviceToHost));
        all.push_back({name, hash(output)});
    };
    run("mma.m16n8k16 bf16", mma);
    run("ldmatrix.x4", load_matrices<0>);
    run("ldmatrix.x4.trans", load_matrices<1>);
    run("ldmatrix.x2", load_matrices<2>);
    run("ldmatrix.x2.trans", load_matrices<3>);
    run("cp.async", copies);
    run("shuffles and votes", shuffles);
    run("bf16 and ex2", conversions);
    run("named barriers", named_barriers, 128);
    check(cudaFree(in));
    check(cudaFree(out));
    return all;
}

}  // namespace keel::KEEL_DEVICE
