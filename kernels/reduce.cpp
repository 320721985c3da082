#include "kernels/reduce.h"

// Compiled here, for this processor: the packaged library's SSE2 gives 16 GB/s in cache, AVX2 more than twice that. The
// AVX-512 form (51 GB/s) draws GCC 12's false warnings of uninitialised operands, and memory is slower than either.
#define XXH_INLINE_ALL
#if defined(__AVX2__)
#define XXH_VECTOR XXH_AVX2
#endif
#include <xxhash.h>

#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/simd.h"

namespace keel {
namespace {

constexpr std::int64_t block = reduce_block;
constexpr int lanes = reduce_lanes;

template <class Args> void check(const char* op, const Args& a) {
    if (a.out.size() != 1) fail(op, ": out is ", a.out.shape(), ", but must have one element");
    expect_contiguous(op, a.x);
    if (a.scratch.size() < reduce_scratch_bytes(a.x.size()))
        fail(op, ": scratch has ", a.scratch.size(), " bytes, but ", a.x.size(), " elements need ",
             reduce_scratch_bytes(a.x.size()), "; reserve reduce_scratch_bytes(n)");
}

// of(x, n) for every block of args.x, kept in scratch. A tile takes several blocks where a block is little work.
template <class R, class Args, class Of> R* blocks_of(Stream& stream, const Args& a, std::int64_t per_tile, Of of) {
    R* partial = reinterpret_cast<R*>(a.scratch.data());
    const std::int64_t n = a.x.size(), blocks = ceil_div(n, block);
    stream.parallel(ceil_div(blocks, per_tile), [&](std::int64_t tile, int) {
        for (std::int64_t b = tile * per_tile; b < std::min(blocks, (tile + 1) * per_tile); ++b)
            partial[b] = of(a.x.data() + b * block, std::min(block, n - b * block));
    });
    return partial;
}

template <class R> R in_order(const R* partial, std::int64_t n) {
    R total{};
    for (std::int64_t b = 0; b < ceil_div(n, block); ++b) total += partial[b];
    return total;
}

typedef float Narrow __attribute__((vector_size(simd::width * 2)));   // half a vector of floats…
typedef double Wide __attribute__((vector_size(simd::width * 4)));    // …is a whole one of doubles
constexpr int wide = simd::width / 2;

// One stream of memory, read faster than the processor itself looks ahead: lines 4 KB on are asked for (6 million
// floats out of the third cache: 27 GB/s, now 38).
constexpr std::int64_t ahead = 1024;

// By intrinsic: of the vector extension GCC 12 makes two halves, taken apart and put together again (from memory 13.4 GB/s a thread, now 14.8).
inline Wide in_double(Narrow v) {
#if defined(KEEL_SIMD_AVX512)
    return static_cast<Wide>(_mm512_maskz_cvtps_pd(0xff, static_cast<__m256>(v)));
#else
    return __builtin_convertvector(v, Wide);
#endif
}

template <class Term> double block_sum(const float* x, std::int64_t n, Term term) {
    double lane[lanes];
    Wide sum[lanes / wide] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        __builtin_prefetch(x + i + ahead, 0, 2);
        __builtin_prefetch(x + i + ahead + lanes / 2, 0, 2);
        for (int k = 0; k < lanes / wide; ++k) {
            Narrow v;
            std::memcpy(&v, x + i + k * wide, sizeof v);
            sum[k] += term(in_double(v));
        }
    }
    std::memcpy(lane, sum, sizeof lane);
    for (; i < n; ++i) lane[i % lanes] += term(static_cast<double>(x[i]));
    for (int half = lanes / 2; half; half /= 2)
        for (int k = 0; k < half; ++k) lane[k] += lane[k + half];
    return lane[0];
}

std::int64_t block_nonfinite(const float* x, std::int64_t n) {
    simd::Uint count{};
    simd::sweep<1>(n, [&](auto at, auto) {
        const simd::Uint exponent = reinterpret_cast<simd::Uint>(at.load(x)) & 0x7f800000u;
        count -= reinterpret_cast<simd::Uint>(exponent == 0x7f800000u);  // a true lane is -1
    });
    std::int64_t total = 0;
    for (int i = 0; i < simd::width; ++i) total += count[i];
    return total;
}

}  // namespace

std::int64_t reduce_scratch_bytes(std::int64_t n) { return std::max<std::int64_t>(1, ceil_div(n, block)) * 8; }

void sum_of_squares(Stream& stream, const SumOfSquares& args) {
    check("sum_of_squares", args);
    if (run_on_device(stream, args)) return;
    const auto square = [](auto v) { return v * v; };  // exact: 24 bits squared fit in a double
    const double* partial = blocks_of<double>(
        stream, args, 1, [&](const float* x, std::int64_t n) { return block_sum(x, n, square); });
    args.out[0] = in_order(partial, args.x.size());
}

void sum(Stream& stream, const Sum& args) {
    check("sum", args);
    if (run_on_device(stream, args)) return;
    const auto itself = [](auto v) { return v; };
    const double* partial = blocks_of<double>(
        stream, args, 1, [&](const float* x, std::int64_t n) { return block_sum(x, n, itself); });
    args.out[0] = in_order(partial, args.x.size());
}

void count_nonfinite(Stream& stream, const CountNonfinite& args) {
    check("count_nonfinite", args);
    if (run_on_device(stream, args)) return;
    const std::int64_t* partial = blocks_of<std::int64_t>(stream, args, 1, block_nonfinite);
    args.out[0] = in_order(partial, args.x.size());
}

void hash(Stream& stream, const Hash& args) {
    check("hash", args);
    if (run_on_device(stream, args)) return;
    const std::uint64_t* partial = blocks_of<std::uint64_t>(stream, args, 4, [](const std::byte* x, std::int64_t n) {
        return static_cast<std::uint64_t>(XXH3_64bits(x, static_cast<std::size_t>(n)));
    });
    args.out[0] = XXH3_64bits(partial, static_cast<std::size_t>(ceil_div(args.x.size(), block)) * sizeof *partial);
}

}  // namespace keel
