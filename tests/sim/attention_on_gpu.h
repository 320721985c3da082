// tests/sim/attention_on_gpu.h: a problem of attention on a GPU, real or simulated, and its results against the double
// reference, for the tests of its kernels.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/attention_reference.h"
#include "tests/sim/gpu_tensor.h"

namespace keel::attention_test {

template <class T>
Values rows_of(const std::vector<T>& x, std::int64_t rows, std::int64_t stride, std::int64_t columns, std::int64_t to) {
    Values out(static_cast<std::size_t>(rows * to), std::numeric_limits<double>::quiet_NaN());
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c)
            out[static_cast<std::size_t>(r * to + c)] =
                static_cast<double>(static_cast<float>(x[static_cast<std::size_t>(r * stride + c)]));
    return out;
}

struct Keys {
    std::int64_t begin, end;
};

// A problem's tensors on a GPU. Rows of outputs hold `pad` elements more, which nobody may change.
template <class T>
struct OnGpu {
    const Tensors<T>& in;
    const Problem& p;
    Stream& stream;
    std::int64_t q_width, kv_width, q_row, kv_row, scratch_bytes;
    GpuTensor<T> q, kv, dy, y, dq, dkv;
    GpuTensor<float> lse, table;
    GpuTensor<std::int32_t> lo, at;
    GpuTensor<std::byte> scratch;

    OnGpu(Gpu& gpu, Stream& s, const Tensors<T>& tensors, std::int64_t pad)
        : in(tensors),
          p(in.p),
          stream(s),
          q_width(in.q_width),
          kv_width(in.kv_width),
          q_row(q_width + pad),
          kv_row(2 * kv_width + pad),
          scratch_bytes(attention_scratch_bytes(p.tokens, p.heads, p.kv_tokens(), p.kv_heads, p.head_dim)),
          q(gpu, s, {p.tokens, q_row}, rows_of(in.q, p.tokens, in.q_stride, q_width, q_row)),
          kv(gpu, s, {p.kv_tokens(), kv_row}, rows_of(in.kv, p.kv_tokens(), in.kv_stride, 2 * kv_width, kv_row)),
          dy(gpu, s, {p.tokens, q_row}, rows_of(in.dy, p.tokens, in.q_stride, q_width, q_row)),
          y(gpu, s, {p.tokens, q_row}, Values(static_cast<std::size_t>(p.tokens * q_row), 7)),
          dq(gpu, s, {p.tokens, q_row}, Values(static_cast<std::size_t>(p.tokens * q_row), 7)),
          dkv(gpu, s, {p.kv_tokens(), kv_row}, Values(static_cast<std::size_t>(p.kv_tokens() * kv_row), 7)),
          lse(gpu, s, {p.heads, p.tokens}),
          table(gpu, s, {Problem::positions, p.rotary}, Values(in.table.begin(), in.table.end())),
          lo(gpu, s, {p.tokens}, Values(in.lo.begin(), in.lo.end())),
          at(gpu, s, {p.kv_tokens()}, Values(in.at.begin(), in.at.end())),
          scratch(gpu, s, {scratch_bytes}) {}

    View<T> keys(const GpuTensor<T>& x, Keys some, std::int64_t column) const {
        return x.view().rows(some.begin, some.end - some.begin).columns(column, kv_width);
    }
    void forward(Keys some) {
        attention_forward<T>(stream, {.y = y.view().columns(0, q_width),
                                      .lse = lse.view(),
                                      .q = q.read().columns(0, q_width),
                                      .k = keys(kv, some, 0),
                                      .v = keys(kv, some, kv_width),
                                      .lo = lo.read(),
                                      .head_dim = p.head_dim,
                                      .query_offset = p.query_offset,
                                      .key_begin = some.begin,
                                      .scale = p.scale()});
    }
    void backward(Keys some) {
        attention_backward<T>(stream, {.dq = dq.view().columns(0, q_width),
                                       .dk = keys(dkv, some, 0),
                                       .dv = keys(dkv, some, kv_width),
                                       .scratch = scratch.view(),
                                       .dy = dy.read().columns(0, q_width),
                                       .y = y.read().columns(0, q_width),
                                       .lse = lse.read(),
                                       .q = q.read().columns(0, q_width),
                                       .k = keys(kv, some, 0),
                                       .v = keys(kv, some, kv_width),
                                       .lo = lo.read(),
                                       .head_dim = p.head_dim,
                                       .query_offset = p.query_offset,
                                       .key_begin = some.begin,
                                       .scale = p.scale(),
                                       .q_rope = angles(p.query_offset, p.tokens),
                                       .k_rope = angles(some.begin, some.end - some.begin)});
    }
    std::optional<RopeAngles> angles(std::int64_t first, std::int64_t count) const {
        if (!p.rotary) return {};
        return RopeAngles{table.read(), at.read().rows(first, count)};
    }
    static Values inside(const GpuTensor<T>& x, std::int64_t row, std::int64_t columns) {
        const Values wide = x.values();
        Values narrow;
        for (std::size_t i = 0; i < wide.size(); ++i)
            if (static_cast<std::int64_t>(i) % row < columns)
                narrow.push_back(wide[i]);
            else
                EXPECT_EQ(wide[i], 7) << "outside, element " << i;
        return narrow;
    }
    Values y_values() const { return inside(y, q_row, q_width); }
    Values dq_values() const { return inside(dq, q_row, q_width); }
    Values dkv_values() const { return inside(dkv, kv_row, 2 * kv_width); }  // a row: dk, then dv
};

// Forward over all keys, backward over keys before `cut` and then over the others, for which dq is added up.
template <class T>
void matches(const Problem& p, std::int64_t pad, std::int64_t cut = 0,
             std::unique_ptr<Stream> OneGpu::*stream = &OneGpu::stream) {
    SCOPED_TRACE(p.text());
    Result<T> result{Tensors<T>(p), Outputs<T>(p)};
    const auto put = [](View<T> to, const Values& from, std::int64_t begin, std::int64_t row) {
        for (std::int64_t r = 0; r < to.dim(0); ++r)
            for (std::int64_t c = 0; c < to.dim(1); ++c)
                to.row(r)[c] = T(static_cast<float>(from[static_cast<std::size_t>(r * row + begin + c)]));
    };
    for (const auto& got : on_gpus(
             [&](Gpu&gpu, Stream&queue) -> std::vector<Values> {
                 OnGpu<T> on(gpu, queue, result.in, pad);
                 on.forward({0, p.kv_tokens()});
                 on.backward({cut, p.kv_tokens()});
                 Values dq = on.dq_values();
                 if (cut > 0) {
                     on.backward({0, cut});
                     const Values more = on.dq_values();
                     for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += more[i];
                 }
                 return {on.y_values(), on.lse.values(), dq, on.dkv_values()};
             },
             stream)) {
        const std::int64_t q_width = result.in.q_width, kv_width = result.in.kv_width;
        put(result.out.y_view(), got[0], 0, q_width);
        put(result.out.dq_view(), got[2], 0, q_width);
        put(result.out.dk_view(), got[3], 0, 2 * kv_width);
        put(result.out.dv_view(), got[3], kv_width, 2 * kv_width);
        for (std::size_t i = 0; i < got[1].size(); ++i) result.out.lse[i] = static_cast<float>(got[1][i]);
        expect_right(p, result, cut > 0 ? 2 : 1, p.rotary && !(p.rotary == p.head_dim && (p.rotary == 64 || p.rotary == 128)));
    }
}

}  // namespace keel::attention_test
