#include "kernels/attention_merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda_ops.h"
#include "kernels/simd.h"
#include "kernels/tiles.h"

namespace keel {
namespace {

// body(row) for every row.
template <class Body>
void each_row(Stream& stream, std::int64_t rows, std::int64_t row_elements, Body body) {
    parallel_rows(stream, rows, row_elements, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) body(i);
    });
}

struct Weights {
    float sum, part, lse;
};
// e^(lse - l) and e^(part - l). l itself is rounded, and far from 0 that would be an error of both weights: they are
// shares of what has been summed relative to the larger.
Weights weights(float lse, float part) {
    const float most = std::max(lse, part);
    if (most == -std::numeric_limits<float>::infinity()) return {0, 0, most};
    const float a = std::exp(lse - most), b = std::exp(part - most), total = a + b;
    return {a / total, b / total, most + std::log(total)};
}

template <class T>
void merge_cpu(Stream& stream, const AttentionMerge<T>& a) {
    const std::int64_t tokens = a.lse.dim(1), heads = a.lse.dim(0), head_dim = a.sum.dim(1) / heads;
    each_row(stream, tokens, a.sum.dim(1), [&](std::int64_t i) {
        for (std::int64_t h = 0; h < heads; ++h) {
            float* const sum = a.sum.row(i) + h * head_dim;
            const T* const part = a.part.row(i) + h * head_dim;
            float& lse = a.lse.row(h)[i];
            if (!a.accumulate) {
                lse = a.part_lse.row(h)[i];
                simd::sweep(head_dim, [&](auto at) { at.store(sum, at.load(part)); });
                continue;
            }
            const Weights w = weights(lse, a.part_lse.row(h)[i]);
            if (w.part == 0) continue;
            lse = w.lse;
            const simd::Float old = simd::set(w.sum), add = simd::set(w.part);
            simd::sweep(head_dim, [&](auto at) { at.store(sum, at.load(sum) * old + at.load(part) * add); });
        }
    });
}

}  // namespace

template <class T>
void attention_merge(Stream& stream, const AttentionMerge<T>& a) {
    if (a.lse.rank() != 2 || a.lse.dim(0) == 0)
        fail("attention_merge: lse is ", a.lse.shape(), ", but must be a matrix [heads, tokens]");
    const std::int64_t heads = a.lse.dim(0), tokens = a.lse.dim(1);
    if (a.sum.rank() != 2 || a.sum.dim(1) % heads)
        fail("attention_merge: sum is ", a.sum.shape(),
             ", but must be a matrix [tokens, heads * head_dim], with heads ", heads);
    expect_shape("attention_merge: sum", a.sum, {tokens, a.sum.dim(1)});
    expect_shape("attention_merge: part", a.part, {tokens, a.sum.dim(1)});
    expect_shape("attention_merge: part_lse", a.part_lse, {heads, tokens});
    expect_contiguous("attention_merge: lse", a.lse);
    expect_contiguous("attention_merge: part_lse", a.part_lse);
    if (run_on_device(stream, a)) return;
    merge_cpu(stream, a);
}

template <class T>
void add_part(Stream& stream, const AddPart<T>& a) {
    expect_shape("add_part: part", a.part, {a.sum.dim(0), a.sum.dim(1)});
    if (run_on_device(stream, a)) return;
    each_row(stream, a.sum.dim(0), a.sum.dim(1), [&](std::int64_t i) {
        float* const sum = a.sum.row(i);
        const T* const part = a.part.row(i);
        simd::sweep(a.sum.dim(1), [&](auto at) { at.store(sum, at.load(sum) + at.load(part)); });
    });
}

template <class T>
void round_sum(Stream& stream, const RoundSum<T>& a) {
    expect_shape("round_sum: sum", a.sum, {a.y.dim(0), a.y.dim(1)});
    if (run_on_device(stream, a)) return;
    each_row(stream, a.y.dim(0), a.y.dim(1), [&](std::int64_t i) {
        T* const y = a.y.row(i);
        const float* const sum = a.sum.row(i);
        simd::sweep(a.y.dim(1), [&](auto at) { at.store(y, at.load(sum)); });
    });
}

#define KEEL_INSTANTIATE(T)                                           \
    template void attention_merge(Stream&, const AttentionMerge<T>&); \
    template void add_part(Stream&, const AddPart<T>&);               \
    template void round_sum(Stream&, const RoundSum<T>&);
KEEL_INSTANTIATE(float)
KEEL_INSTANTIATE(bf16)
KEEL_INSTANTIATE(f16)
#undef KEEL_INSTANTIATE

}  // namespace keel
