// The CUDA bodies of linear against double sums, element by element, swept over schedules: strided rows, a bias that
// the library adds and one that a kernel adds, gradients written and accumulated.
#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <thread>

#include "kernels/cudasim/counters.h"
#include "kernels/products.h"
#include "tests/sim/gpu_tensor.h"

namespace keel {
namespace {

// `sum` of `terms` products of total size `size`, in any order, with u = 2^-24 (Higham 3.1); bf16 results are rounded
// once, and once more where a bias is added afterwards: 2^-8 each.
template <class C>
void expect_sum(double got, double sum, double size, std::int64_t terms, const std::string& where) {
    double bound = 1.01 * static_cast<double>(terms + 2) * 0x1p-24 * size;
    if (std::is_same_v<C, bf16>) bound += 0x1p-7 * (size + bound);
    EXPECT_LE(std::abs(got - sum), bound) << where;
}

// A matrix in rows `stride` apart on the GPU; the margin is 1000 before, and after.
struct Host {
    std::int64_t rows, columns, stride;
    Values values;
    Host(std::int64_t r, std::int64_t c, std::int64_t margin, const Values& from)
        : rows(r), columns(c), stride(c + margin), values(static_cast<std::size_t>(r * (c + margin)), 1000) {
        for (std::int64_t i = 0; i < r * c; ++i)
            values[static_cast<std::size_t>(i / c * stride + i % c)] = from[static_cast<std::size_t>(i)];
    }
    double at(std::int64_t i, std::int64_t j) const { return at(values, i, j); }
    double at(const Values& v, std::int64_t i, std::int64_t j) const {
        return v[static_cast<std::size_t>(i * stride + j)];
    }
    void expect_margin(const Values& v) const {
        for (std::int64_t i = 0; i < rows * stride; ++i)
            if (i % stride >= columns) {
                ASSERT_EQ(v[static_cast<std::size_t>(i)], 1000) << "outside, element " << i;
            }
    }
};
template <class T>
Host random_host(const char* name, std::int64_t rows, std::int64_t columns, std::int64_t margin) {
    return {rows, columns, margin, random_values<T>(name, rows * columns)};
}
template <class T>
struct OnGpu : GpuTensor<T> {
    std::int64_t columns;
    OnGpu(Gpu& gpu, Stream& stream, const Host& h)
        : GpuTensor<T>(gpu, stream, {h.rows, h.stride}, h.values), columns(h.columns) {}
    View<T> matrix() const { return this->view().columns(0, columns); }
};

struct Shape {
    std::int64_t tokens, in, out, margin;
};
const Shape shapes[] = {{1, 8, 1, 0}, {13, 24, 40, 8}, {7, 31, 17, 3}};

template <class T, class Y>
void forward_matches() {
    for (const Shape& s : shapes)
        for (const int bias_at : {-1, 0, 1}) {  // none; aligned, for the library; one element further
            const Host x = random_host<T>("x", s.tokens, s.in, s.margin), w = random_host<T>("w", s.out, s.in, 0);
            const Host y(s.tokens, s.out, s.margin, Values(static_cast<std::size_t>(s.tokens * s.out)));
            const Values bias = random_values<T>("bias", s.out + 1);
            for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     OnGpu<T> gx(gpu, stream, x), gw(gpu, stream, w);
                     OnGpu<Y> gy(gpu, stream, y);
                     GpuTensor<T> gb(gpu, stream, {s.out + 1}, bias);
                     LinearForward<T, Y> args{.y = gy.matrix(), .x = gx.matrix(), .w = gw.matrix()};
                     if (bias_at >= 0) args.bias = gb.read().rows(bias_at, s.out);
                     linear_forward<T, Y>(stream, args);
                     return {gy.values()};
                 })) {
                y.expect_margin(got[0]);
                for (std::int64_t t = 0; t < s.tokens; ++t)
                    for (std::int64_t o = 0; o < s.out; ++o) {
                        double sum = bias_at < 0 ? 0 : bias[static_cast<std::size_t>(o + bias_at)],
                               size = std::abs(sum);
                        for (std::int64_t i = 0; i < s.in; ++i)
                            sum += x.at(t, i) * w.at(o, i), size += std::abs(x.at(t, i) * w.at(o, i));
                        expect_sum<Y>(y.at(got[0], t, o), sum, size, s.in,
                                      concat("y[", t, ", ", o, "] bias ", bias_at));
                    }
            }
        }
}
TEST(LinearCuda, ForwardMultipliesByTheTransposedWeightAndAddsTheBias) {
    forward_matches<float, float>(), forward_matches<bf16, bf16>(), forward_matches<bf16, float>();
}

// The library takes a bias that is aligned to 16 bytes and of the result's type, and then no kernel is launched for it.
TEST(LinearCuda, ABiasThatTheLibraryCannotTakeIsAddedByAKernel) {
    OneGpu& one = OneGpu::simulated();
    GpuTensor<bf16> x(*one.gpu, *one.stream, {2, 8}, Values(16, 1)), w(*one.gpu, *one.stream, {8, 8}, Values(64, 1)), y(*one.gpu, *one.stream, {2, 8}),
        bias(*one.gpu, *one.stream, {17}, Values(17, 3));
    for (const std::int64_t at : {0, 8, 1, 4}) {
        (void)sim::take_counters();
        linear_forward<bf16>(*one.stream, {.y = y.view(), .x = x.read(), .w = w.read(), .bias = bias.read().rows(at, 8)});
        EXPECT_EQ(sim::take_counters().launches, at % 8 == 0 ? 0u : 1u) << at;
        EXPECT_EQ(y.values(), Values(16, 11));
    }
    EXPECT_TRUE(sim::take_findings().empty());
}

template <class T>
void gradients_match() {
    for (const Shape& s : shapes)
        for (const bool accumulate : {false, true}) {
            const Host x = random_host<T>("x", s.tokens, s.in, s.margin), w = random_host<T>("w", s.out, s.in, 0);
            const Host dy = random_host<T>("dy", s.tokens, s.out, s.margin);
            const Host dx = random_host<T>("dx", s.tokens, s.in, s.margin),
                       dw = random_host<float>("dw", s.out, s.in, 0);
            const Values dbias = random_values<float>("dbias", s.out);
            for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     OnGpu<T> gx(gpu, stream, x), gw(gpu, stream, w), gdy(gpu, stream, dy), gdx(gpu, stream, dx);
                     OnGpu<float> gdw(gpu, stream, dw);
                     GpuTensor<float> gdb(gpu, stream, {s.out}, dbias);
                     linear_dgrad<T>(
                         stream, {.dx = gdx.matrix(), .dy = gdy.matrix(), .w = gw.matrix(), .accumulate = accumulate});
                     linear_wgrad<T>(
                         stream, {.dw = gdw.matrix(), .dy = gdy.matrix(), .x = gx.matrix(), .accumulate = accumulate});
                     bias_grad<T>(stream, {.dbias = gdb.view(), .dy = gdy.matrix()});
                     return {gdx.values(), gdw.values(), gdb.values()};
                 })) {
                dx.expect_margin(got[0]);
                const auto start = [&](double before) { return accumulate ? before : 0.0; };
                for (std::int64_t t = 0; t < s.tokens; ++t)
                    for (std::int64_t i = 0; i < s.in; ++i) {
                        double sum = start(dx.at(t, i)), size = std::abs(sum);
                        for (std::int64_t o = 0; o < s.out; ++o)
                            sum += dy.at(t, o) * w.at(o, i), size += std::abs(dy.at(t, o) * w.at(o, i));
                        expect_sum<T>(dx.at(got[0], t, i), sum, size, s.out, concat("dx[", t, ", ", i, "]"));
                    }
                for (std::int64_t o = 0; o < s.out; ++o) {
                    for (std::int64_t i = 0; i < s.in; ++i) {
                        double sum = start(dw.at(o, i)), size = std::abs(sum);
                        for (std::int64_t t = 0; t < s.tokens; ++t)
                            sum += dy.at(t, o) * x.at(t, i), size += std::abs(dy.at(t, o) * x.at(t, i));
                        expect_sum<float>(dw.at(got[1], o, i), sum, size, s.tokens, concat("dw[", o, ", ", i, "]"));
                    }
                    double sum = dbias[static_cast<std::size_t>(o)], size = std::abs(sum);
                    for (std::int64_t t = 0; t < s.tokens; ++t) sum += dy.at(t, o), size += std::abs(dy.at(t, o));
                    expect_sum<float>(got[2][static_cast<std::size_t>(o)], sum, size, s.tokens,
                                      concat("dbias[", o, "]"));
                }
            }
        }
}
TEST(LinearCuda, GradientsMatchAndAddOnlyWhenAskedInFloat) { gradients_match<float>(); }
TEST(LinearCuda, GradientsMatchAndAddOnlyWhenAskedInBf16) { gradients_match<bf16>(); }

// Another thread is another rank, and chooses anew; but for what it is told to take.
TEST(LinearCuda, ChoicesOfTheLibraryAreTakenAgainButNotAStrangersNorFromABrokenLine) {
    const auto chosen_by_one_told = [](const std::string& told, bool workspace = false) {
        std::string chosen;
        std::thread([&] {
            OneGpu one(Device::cudasim);
            if (!workspace) one.products = {};
            prefer_products(Device::cudasim, told);
            const GpuTensor<bf16> y(*one.gpu, *one.stream, {8, 8}), x(*one.gpu, *one.stream, {8, 8}, Values(64, 1)),
                w(*one.gpu, *one.stream, {8, 8}, Values(64, 1));
            linear_forward<bf16>(*one.stream, {.y = y.view(), .x = x.read(), .w = w.read()});
            one.stream->synchronize();
            chosen = chosen_products(Device::cudasim);
        }).join();
        return chosen;
    };
    const std::string first = chosen_by_one_told(""), in_workspace = chosen_by_one_told("", true);
    EXPECT_NE(first.find("split 1, workspace 0 | "), std::string::npos) << first;
    EXPECT_NE(in_workspace.find("split 4, workspace 1024 | "), std::string::npos) << in_workspace;
    EXPECT_EQ(chosen_by_one_told(in_workspace), first);        // needs more than there is
    EXPECT_EQ(chosen_by_one_told(first, true), first);         // as a run that had none goes on
    std::string in_place = in_workspace;                       // which rounds sums to bf16 in between
    const auto scheme = in_place.find("0000000000000002");
    ASSERT_NE(scheme, std::string::npos) << in_place;
    in_place[scheme + 15] = '1';
    EXPECT_EQ(chosen_by_one_told(in_place, true), in_workspace);
    std::string told = first;  // to promise less of an address than there is
    const auto at = told.find("0000000000000100", told.find(" | "));
    ASSERT_NE(at, std::string::npos) << first;
    told[at + 13] = '0', told[at + 14] = '4';
    const auto after_whose = told.find('\n') + 1;
    EXPECT_EQ(chosen_by_one_told(told), told);
    EXPECT_EQ(chosen_by_one_told("cublasLt 1 on another\n" + told.substr(after_whose)), first);
    for (const char* const broken : {"x\n", "no line\n", "\n"})
        EXPECT_EQ(chosen_by_one_told(told.substr(0, after_whose) + broken + told.substr(after_whose)), told) << broken;
}

// What a run measures before its model lends a workspace leaves no second line of a product that its steps have.
TEST(LinearCuda, AProductMetWithAndWithoutAWorkspaceHasOneLineThatOfTheWorkspace) {
    for (const bool first_without : {true, false})
        std::thread([&] {
            OneGpu one(Device::cudasim);
            const GpuTensor<bf16> y(*one.gpu, *one.stream, {8, 8}), x(*one.gpu, *one.stream, {8, 8}, Values(64, 1)),
                w(*one.gpu, *one.stream, {8, 8}, Values(64, 1));
            const auto meet = [&] {
                linear_forward<bf16>(*one.stream, {.y = y.view(), .x = x.read(), .w = w.read()});
                one.stream->synchronize();
            };
            if (!first_without) meet();
            one.products = {};
            meet();
            one.products = one.stream->lend(one.workspace, product_workspace_bytes(Device::cudasim));
            meet();
            const std::string chosen = chosen_products(Device::cudasim);
            EXPECT_EQ(std::ranges::count(chosen, '\n'), 2) << chosen;
            EXPECT_NE(chosen.find("split 4, workspace 1024 | "), std::string::npos) << chosen;
        }).join();
}

// Four sums, of 256 and of ones: a bf16 of that size counts by twos, and 257 is halfway. Their sum is rounded once.
TEST(LinearCuda, SumsThatAreCutAreAddedInFloatForAResultInBf16) {
    OneGpu& one = OneGpu::simulated();
    Values parts(64);
    for (std::size_t i = 0; i < 64; i += 2) parts[i] = i % 8 == 0 ? 256 : 1;
    const GpuTensor<bf16> y(*one.gpu, *one.stream, {8, 8}), x(*one.gpu, *one.stream, {8, 8}, parts),
        w(*one.gpu, *one.stream, {8, 8}, Values(64, 1));
    linear_forward<bf16>(*one.stream, {.y = y.view(), .x = x.read(), .w = w.read()});
    EXPECT_EQ(y.values(), Values(64, 260));
}

TEST(LinearCuda, NoTokensLeaveAnAccumulatedGradientAndClearAWrittenOne) {
    for (const bool accumulate : {false, true})
        for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                 GpuTensor<bf16> x(gpu, stream, {0, 8}), dy(gpu, stream, {0, 4});
                 GpuTensor<float> dw(gpu, stream, {4, 8}, Values(32, 3));
                 linear_wgrad<bf16>(stream,
                                    {.dw = dw.view(), .dy = dy.read(), .x = x.read(), .accumulate = accumulate});
                 return {dw.values()};
             }))
            EXPECT_EQ(got[0], Values(32, accumulate ? 3 : 0));
}

}  // namespace
}  // namespace keel
