// The CUDA body of kernels/reduce.h's hash: XXH3-64 of each block, then of the block hashes, as the library gives them
// on the CPU. A warp takes a block. In a stretch of 1024 bytes XXH3 only adds, to eight accumulators, so lanes take
// parts of it in any order; what follows in order (scrambling, short inputs) every lane computes alike. Algorithm:
// github.com/Cyan4973/xxHash, doc/xxhash_spec.md, "XXH3 Algorithm".
#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/reduce.h"

namespace keel::KEEL_DEVICE {
namespace {

using u8 = unsigned char;
using u64 = unsigned long long;

constexpr int warps = 8;
constexpr u64 prime32_1 = 0x9E3779B1, prime32_2 = 0x85EBCA77, prime32_3 = 0xC2B2AE3D;
constexpr u64 prime64_1 = 0x9E3779B185EBCA87, prime64_2 = 0xC2B2AE3D27D4EB4F, prime64_3 = 0x165667B19E3779F9,
              prime64_4 = 0x85EBCA77C2B2AE63, prime64_5 = 0x27D4EB2F165667C5;
constexpr u64 mix_1 = 0x165667919E3779F9, mix_2 = 0x9FB21C651E98DF25;

constexpr int secret_bytes = 192;
__device__ const u8 secret[secret_bytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

// `bytes` bytes at p, the first in the lowest place, however p is aligned.
KEEL_INLINE u64 read(const u8* p, int bytes) {
    u64 v = 0;
    for (int i = 0; i < bytes; ++i) v |= static_cast<u64>(load(p + i).at[0]) << 8 * i;
    return v;
}
KEEL_INLINE u64 read64(const u8* p) { return read(p, 8); }
KEEL_INLINE u64 secret64(int at) {
    u64 v = 0;
    for (int i = 0; i < 8; ++i) v |= static_cast<u64>(secret[at + i]) << 8 * i;
    return v;
}
KEEL_INLINE u64 rotated(u64 x, int bits) { return x << bits | x >> (64 - bits); }
KEEL_INLINE u64 swapped(u64 x) {
    u64 v = 0;
    for (int i = 0; i < 8; ++i) v = v << 8 | (x >> 8 * i & 0xff);
    return v;
}
KEEL_INLINE u64 folded_product(u64 a, u64 b) { return a * b ^ __umul64hi(a, b); }
KEEL_INLINE u64 avalanche(u64 h) {
    h = (h ^ h >> 37) * mix_1;
    return h ^ h >> 32;
}
KEEL_INLINE u64 old_avalanche(u64 h) {  // of XXH64
    h = (h ^ h >> 33) * prime64_2;
    h = (h ^ h >> 29) * prime64_3;
    return h ^ h >> 32;
}
KEEL_INLINE u64 mixed_16(const u8* p, int at) {
    return folded_product(read64(p) ^ secret64(at), read64(p + 8) ^ secret64(at + 8));
}

constexpr int longest_short = 240;
// Of up to 240 bytes.
KEEL_INLINE u64 hash_short(const u8* p, int n) {
    if (n == 0) return old_avalanche(secret64(56) ^ secret64(64));
    const u64 length = static_cast<u64>(n);
    if (n <= 3) {
        const u64 word = read(p, 1) << 16 | read(p + n / 2, 1) << 24 | read(p + n - 1, 1) | length << 8;
        return old_avalanche(word ^ ((secret64(0) ^ secret64(4)) & 0xffffffff));
    }
    if (n <= 8) {
        u64 h = (read(p + n - 4, 4) + (read(p, 4) << 32)) ^ (secret64(8) ^ secret64(16));
        h ^= rotated(h, 49) ^ rotated(h, 24);
        h *= mix_2;
        h = (h ^ ((h >> 35) + length)) * mix_2;
        return h ^ h >> 28;
    }
    if (n <= 16) {
        const u64 low = read64(p) ^ secret64(24) ^ secret64(32), high = read64(p + n - 8) ^ secret64(40) ^ secret64(48);
        return avalanche(length + swapped(low) + high + folded_product(low, high));
    }
    u64 h = length * prime64_1;
    if (n <= 128) {  // 16 bytes from both ends, up to the middle
        for (int i = (n - 1) / 32; i >= 0; --i)
            h += mixed_16(p + 16 * i, 32 * i) + mixed_16(p + n - 16 * (i + 1), 32 * i + 16);
        return avalanche(h);
    }
    for (int i = 0; i < 8; ++i) h += mixed_16(p + 16 * i, 16 * i);
    h = avalanche(h);
    for (int i = 8; i < n / 16; ++i) h += mixed_16(p + 16 * i, 16 * (i - 8) + 3);
    return avalanche(h + mixed_16(p + n - 16, 136 - 17));
}

// Of more than 240 bytes, by a warp: lane l keeps a part of accumulator l % 8.
template <bool aligned>
KEEL_INLINE u64 hash_long(const u8* p, int n) {
    constexpr int stripe = 64, stripes = 16, block = stripe * stripes, at_end = secret_bytes - stripe;
    const int lane = static_cast<int>(threadIdx.x) % warp_size, mine = lane % 8;
    constexpr u64 start[8] = {prime32_3, prime64_1, prime64_2, prime64_3, prime64_4, prime32_2, prime64_5, prime32_1};
    u64 total = 0;  // of this accumulator, the same in its four lanes
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (mine == i) total = start[i];
    const auto word = [&](const u8* from) {
        if constexpr (aligned) {
            const Pack<u8, 8> bytes = load<8>(from);
            u64 v;
            memcpy(&v, &bytes, sizeof v);
            return v;
        } else {
            return read64(from);
        }
    };
    // Adds `count` stripes at `from`; stripe s is mixed with the secret from `at` + 8 s on.
    const auto accumulate = [&](const u8* from, int count, int at, auto read_word) {
        u64 product = 0, plain = 0;
        for (int s = lane / 8; s < count; s += warp_size / 8) {
            const u64 v = read_word(from + s * stripe + mine * 8), key = v ^ secret64(at + 8 * s + 8 * mine);
            product += (key & 0xffffffff) * (key >> 32);
            plain += v;
        }
        u64 sum = product + __shfl_xor_sync(all_lanes, plain, 1);  // a word counts to its neighbour's accumulator
        sum += __shfl_xor_sync(all_lanes, sum, 8);
        total += sum + __shfl_xor_sync(all_lanes, sum, 16);
    };
    const int blocks = (n - 1) / block;
    for (int b = 0; b < blocks; ++b) {
        accumulate(p + b * block, stripes, 0, word);
        total = (total ^ total >> 47 ^ secret64(at_end + 8 * mine)) * prime32_1;
    }
    accumulate(p + blocks * block, (n - 1 - blocks * block) / stripe, 0, word);
    accumulate(p + n - stripe, 1, at_end - 7, read64);
    const u64 left = __shfl_sync(all_lanes, total, mine / 2 * 2) ^ secret64(11 + mine / 2 * 16),
              right = __shfl_sync(all_lanes, total, mine / 2 * 2 + 1) ^ secret64(11 + mine / 2 * 16 + 8);
    u64 h = folded_product(left, right);  // four different ones
    h += __shfl_xor_sync(all_lanes, h, 2);
    h += __shfl_xor_sync(all_lanes, h, 4);
    return avalanche(h + static_cast<u64>(n) * prime64_1);
}

// out[i] = the hash of bytes [i * block, (i + 1) * block) of x.
template <bool aligned>
__global__ void __launch_bounds__(warps* warp_size)
    hash_kernel(u64* out, const u8* x, std::int64_t bytes, std::int64_t block) {
    const std::int64_t i = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp_size, begin = i * block;
    if (begin >= bytes && i > 0) return;  // the whole warp
    const int n = static_cast<int>(bytes - begin < block ? bytes - begin : block);
    const u64 h = n <= longest_short ? hash_short(x + begin, n) : hash_long<aligned>(x + begin, n);
    if (threadIdx.x % warp_size == 0) store(out + i, {h});
}

void hash_blocks(Stream& stream, u64* out, const u8* x, std::int64_t bytes, std::int64_t block) {
    const std::int64_t blocks = bytes > block ? ceil_div(bytes, block) : 1;
    launch(stream, {.blocks = static_cast<unsigned>(ceil_div(blocks, warps)), .threads = warps * warp_size},
           in_vectors_of(8, x, 0) ? hash_kernel<true> : hash_kernel<false>, out, x, bytes, block);
}

}  // namespace

template <>
void run(Stream& stream, const Hash& args) {
    u64* const partial = reinterpret_cast<u64*>(args.scratch.data());
    const std::int64_t bytes = args.x.size(), blocks = ceil_div(bytes, reduce_block);
    if (blocks > 0) hash_blocks(stream, partial, reinterpret_cast<const u8*>(args.x.data()), bytes, reduce_block);
    const std::int64_t of_hashes = blocks * static_cast<std::int64_t>(sizeof(u64));
    hash_blocks(stream, reinterpret_cast<u64*>(args.out.data()), reinterpret_cast<const u8*>(partial), of_hashes,
                std::max<std::int64_t>(of_hashes, 1));
}

}  // namespace keel::KEEL_DEVICE
