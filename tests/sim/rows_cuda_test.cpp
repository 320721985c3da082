// The CUDA bodies of rope, head_norm and split_norm, which work on rows that may be strided, against the double
// reference, swept over schedules.
#include <gtest/gtest.h>

#include "kernels/head_norm.h"
#include "kernels/rope.h"
#include "kernels/split_norm.h"
#include "tests/kernels/reference.h"
#include "tests/sim/gpu_tensor.h"

namespace keel {
namespace {

// Rows of `columns` within wider ones: `begin` elements before, `margin` after, all of them -7, which nobody may
// change.
constexpr double margin_value = -7;
Values widened(const Values& x, std::int64_t columns, std::int64_t begin, std::int64_t margin) {
    Values out;
    for (std::size_t at = 0; at < x.size(); at += static_cast<std::size_t>(columns)) {
        out.insert(out.end(), static_cast<std::size_t>(begin), margin_value);
        out.insert(out.end(), x.begin() + static_cast<std::ptrdiff_t>(at),
                   x.begin() + static_cast<std::ptrdiff_t>(at) + columns);
        out.insert(out.end(), static_cast<std::size_t>(margin), margin_value);
    }
    return out;
}
Values narrowed(const Values& x, std::int64_t columns, std::int64_t begin, std::int64_t margin) {
    Values out;
    const std::int64_t stride = begin + columns + margin;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const std::int64_t column = static_cast<std::int64_t>(i) % stride - begin;
        if (column >= 0 && column < columns)
            out.push_back(x[i]);
        else
            EXPECT_EQ(x[i], margin_value) << "element " << i << " lies outside of the tensor";
    }
    return out;
}

struct Heads {
    std::int64_t tokens, heads, head_dim, begin, margin;
    std::int64_t columns() const { return heads * head_dim; }
    std::int64_t stride() const { return begin + columns() + margin; }
    std::string text() const {
        return concat(tokens, " tokens, ", heads, " heads of ", head_dim, " in rows of ", stride());
    }
};
// Vectors, and one by one: odd heads, odd strides, an odd beginning, heads that only together are whole vectors.
const Heads shapes[] = {{1, 1, 8, 0, 0},   {7, 3, 16, 16, 8}, {5, 2, 10, 3, 2}, {3, 2, 128, 0, 8},
                        {37, 2, 64, 8, 8}, {2, 5, 48, 1, 0},  {3, 4, 22, 0, 0}};
template <class T>
View<T> inside(const GpuTensor<T>& x, const Heads& h) {
    return x.view().columns(h.begin, h.columns());
}

// ---- rope
// -------------------------------------------------------------------------------------------------------------------

template <class T>
void rope_matches(std::int64_t kept_back) {  // elements of a head that do not turn
    for (const Heads& h : shapes) {
        const std::int64_t rotary = h.head_dim - kept_back, positions = 97;
        if (rotary < 2) continue;
        SCOPED_TRACE(h.text());
        const RopeConfig config{.base = 500000.0};
        std::vector<double> frequency;
        for (std::int64_t i = 0; i < rotary / 2; ++i) frequency.push_back(rope_frequency(config, rotary, i));
        Tensor<float> table(positions, rotary);
        rope_table(config, table.view());
        std::vector<std::int32_t> at;
        for (std::int64_t t = 0; t < h.tokens; ++t) at.push_back(static_cast<std::int32_t>(t * 41 % positions));
        const Values x = random_values<T>("x", h.tokens * h.columns());
        const auto d = static_cast<std::size_t>(h.head_dim);
        for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                 GpuTensor<float> angles(gpu, stream, {positions, rotary}, table.values());
                 GpuTensor<std::int32_t> where(gpu, stream, {h.tokens}, Values(at.begin(), at.end()));
                 const Values start = widened(x, h.columns(), h.begin, h.margin);
                 GpuTensor<T> y(gpu, stream, {h.tokens, h.stride()}, start),
                     dx(gpu, stream, {h.tokens, h.stride()}, start);
                 rope_forward<T>(
                     stream,
                     {.x = inside(y, h), .table = angles.read(), .positions = where.read(), .head_dim = h.head_dim});
                 rope_backward<T>(
                     stream,
                     {.x = inside(dx, h), .table = angles.read(), .positions = where.read(), .head_dim = h.head_dim});
                 return {y.values(), dx.values()};
             }))
            for (const int i : {0, 1}) {
                const double sign = i ? -1 : 1;
                expect_close<T>(i ? "dx" : "y",
                                narrowed(got[static_cast<std::size_t>(i)], h.columns(), h.begin, h.margin),
                                ref::rope<double, double>(x, at, frequency, d, sign),
                                widen(ref::rope<float, T>(ref::cast<float>(x), at, frequency, d, sign)), 4);
            }
    }
}
TEST(RopeCuda, TurnsWholeHeadsForthAndBackInFloat) { rope_matches<float>(0); }
TEST(RopeCuda, TurnsWholeHeadsForthAndBackInBf16) { rope_matches<bf16>(0); }
TEST(RopeCuda, LeavesTheRestOfAHeadAloneWhereOnlyAPartTurns) { rope_matches<bf16>(6), rope_matches<float>(8); }

// ---- head_norm
// --------------------------------------------------------------------------------------------------------------

constexpr float eps = 1e-6f;
constexpr int steps = 14;  // tree sums, a root, a reciprocal, a mean, products; dgain's slices and their sum

template <class T>
void head_norm_matches(bool in_place) {
    for (const Heads& h : shapes) {
        SCOPED_TRACE(h.text());
        const std::int64_t n = h.tokens * h.columns();
        const Values x = random_values<T>("x", n), dy = random_values<T>("dy", n),
                     gain = random_values<T>("gain", h.head_dim, 0.3, 1);
        const auto want = ref::rmsnorm<double, double>(x, gain, eps);
        const auto naive = ref::rmsnorm<float, T>(ref::cast<float>(x), ref::cast<float>(gain), eps);
        const auto grads = ref::rmsnorm_backward<double, double>(dy, x, gain, want.rstd, {}, 1.0);
        const auto naive_grads = ref::rmsnorm_backward<float, T>(ref::cast<float>(dy), ref::cast<float>(x),
                                                                 ref::cast<float>(gain), naive.rstd, {}, 1.0f);
        const auto wide = [&](const Values& v) { return widened(v, h.columns(), h.begin, h.margin); };
        for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                 GpuTensor<T> in(gpu, stream, {h.tokens, h.stride()}, wide(x)),
                     d(gpu, stream, {h.tokens, h.stride()}, wide(dy));
                 GpuTensor<T> g(gpu, stream, {h.head_dim}, gain), apart(gpu, stream, {h.tokens, h.stride()}, wide(dy));
                 GpuTensor<T> y(gpu, stream, {h.tokens, h.stride()}, wide(dy));
                 GpuTensor<float> rstd(gpu, stream, {h.tokens, h.heads}),
                     dgain(gpu, stream, {h.head_dim}, Values(gain.size(), 1.0));
                 GpuTensor<std::byte> scratch(gpu, stream, {head_norm_scratch_bytes(h.tokens, h.head_dim)});
                 GpuTensor<T>& dx = in_place ? d : apart;
                 head_norm_forward<T>(
                     stream,
                     {.y = inside(y, h), .rstd = rstd.view(), .x = inside(in, h), .gain = g.read(), .eps = eps});
                 head_norm_backward<T>(stream, {.dx = inside(dx, h),
                                                .dgain = dgain.view(),
                                                .scratch = scratch.view(),
                                                .dy = inside(d, h),
                                                .x = inside(in, h),
                                                .gain = g.read(),
                                                .rstd = rstd.read()});
                 return {y.values(), rstd.values(), dx.values(), dgain.values()};
             })) {
            const auto narrow = [&](const Values& v) { return narrowed(v, h.columns(), h.begin, h.margin); };
            expect_close<T>("y", narrow(got[0]), want.y, widen(naive.y), steps);
            expect_close<float>("rstd", got[1], want.rstd, widen(naive.rstd), steps);
            expect_close<T>("dx", narrow(got[2]), grads.dx, widen(naive_grads.dx), steps);
            expect_close<float>("dgain", got[3], grads.dgain, widen(naive_grads.dgain), steps);
        }
    }
}
TEST(HeadNormCuda, MatchesTheReferenceInFloat) { head_norm_matches<float>(false); }
TEST(HeadNormCuda, MatchesTheReferenceInBf16) { head_norm_matches<bf16>(false); }
TEST(HeadNormCuda, BackwardMayWriteOverDy) { head_norm_matches<bf16>(true); }

// ---- split_norm
// -------------------------------------------------------------------------------------------------------------

// One rank's half of a row: what the other half adds to the sums comes from the reference.
template <class T>
void split_norm_matches(bool in_place) {
    for (const Heads& h : shapes) {
        SCOPED_TRACE(h.text());
        const std::int64_t columns = h.columns(), width = 2 * columns;
        const Values x = random_values<T>("x", h.tokens * width), dy = random_values<T>("dy", h.tokens * width),
                     gain = random_values<T>("gain", width, 0.3, 1);
        const auto want = ref::rmsnorm<double, double>(x, gain, eps);
        const auto naive = ref::rmsnorm<float, T>(ref::cast<float>(x), ref::cast<float>(gain), eps);
        const auto grads = ref::rmsnorm_backward<double, double>(dy, x, gain, want.rstd, {}, 1.0);
        const auto naive_grads = ref::rmsnorm_backward<float, T>(ref::cast<float>(dy), ref::cast<float>(x),
                                                                 ref::cast<float>(gain), naive.rstd, {}, 1.0f);
        const auto mine = [&](const Values& whole) {  // the first half of every row
            Values out;
            for (std::int64_t t = 0; t < static_cast<std::int64_t>(whole.size()) / width; ++t)
                out.insert(out.end(), whole.begin() + t * width, whole.begin() + t * width + columns);
            return out;
        };
        Values squares, dots, all_squares, all_dots;  // of the half, of the whole
        for (std::int64_t t = 0; t < h.tokens; ++t) {
            double square[2] = {}, dot[2] = {};
            for (std::int64_t i = 0; i < width; ++i) {
                const auto at = static_cast<std::size_t>(t * width + i);
                square[i / columns] += x[at] * x[at];
                dot[i / columns] +=
                    gain[static_cast<std::size_t>(i)] * dy[at] * x[at] * want.rstd[static_cast<std::size_t>(t)];
            }
            squares.push_back(square[0]), all_squares.push_back(square[0] + square[1]);
            dots.push_back(dot[0]), all_dots.push_back(dot[0] + dot[1]);
        }
        const auto wide = [&](const Values& v) { return widened(v, columns, h.begin, h.margin); };
        for (const auto& got : on_gpus([&](Gpu& gpu, Stream& stream) -> std::vector<Values> {
                 GpuTensor<T> in(gpu, stream, {h.tokens, h.stride()}, wide(mine(x))),
                     d(gpu, stream, {h.tokens, h.stride()}, wide(mine(dy))), g(gpu, stream, {columns}, mine(gain)),
                     apart(gpu, stream, {h.tokens, h.stride()}, wide(mine(dy))),
                     y(gpu, stream, {h.tokens, h.stride()}, wide(mine(dy)));
                 GpuTensor<float> sums(gpu, stream, {h.tokens}), found(gpu, stream, {h.tokens}),
                     rstd(gpu, stream, {h.tokens}, all_squares), met(gpu, stream, {h.tokens}, all_dots),
                     dgain(gpu, stream, {columns}, Values(static_cast<std::size_t>(columns), 1.0));
                 GpuTensor<std::byte> scratch(gpu, stream, {split_norm_scratch_bytes(h.tokens, columns)});
                 split_norm_squares<T>(stream, {.sums = sums.view(), .x = inside(in, h)});
                 split_norm_forward<T>(stream, {.y = inside(y, h),
                                                .rstd = rstd.view(),
                                                .x = inside(in, h),
                                                .gain = g.read(),
                                                .width = width,
                                                .eps = eps});
                 split_norm_dots<T>(stream, {.sums = found.view(),
                                             .dy = inside(d, h),
                                             .x = inside(in, h),
                                             .gain = g.read(),
                                             .rstd = rstd.read()});
                 split_norm_backward<T>(stream, {.dx = inside(in_place ? d : apart, h),
                                                 .dgain = dgain.view(),
                                                 .scratch = scratch.view(),
                                                 .dy = inside(d, h),
                                                 .x = inside(in, h),
                                                 .gain = g.read(),
                                                 .rstd = rstd.read(),
                                                 .sums = met.read(),
                                                 .width = width});
                 return {sums.values(), y.values(), rstd.values(), found.values(), (in_place ? d : apart).values(),
                         dgain.values()};
             })) {
            const auto narrow = [&](const Values& v) { return narrowed(v, columns, h.begin, h.margin); };
            const auto rounded = [](const Values& v) { return widen(ref::cast<float>(v)); };
            expect_close<float>("squares", got[0], squares, rounded(squares), steps);
            expect_close<T>("y", narrow(got[1]), mine(want.y), mine(widen(naive.y)), steps);
            expect_close<float>("rstd", got[2], want.rstd, widen(naive.rstd), steps);
            expect_close<float>("dots", got[3], dots, rounded(dots), steps);
            expect_close<T>("dx", narrow(got[4]), mine(grads.dx), mine(widen(naive_grads.dx)), steps);
            expect_close<float>("dgain", got[5], mine(grads.dgain), mine(widen(naive_grads.dgain)), steps);
        }
    }
}
TEST(SplitNormCuda, MatchesTheReferenceInFloat) { split_norm_matches<float>(false); }
TEST(SplitNormCuda, MatchesTheReferenceInBf16) { split_norm_matches<bf16>(false); }
TEST(SplitNormCuda, BackwardMayWriteOverDy) { split_norm_matches<bf16>(true); }

}  // namespace
}  // namespace keel
