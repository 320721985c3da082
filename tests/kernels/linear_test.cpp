// Linear forward, dgrad, wgrad and the bias gradient: which operand is transposed, what is accumulated, and the golden.
// The product under them has its own tests (matmul_test.cpp).
#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "golden.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "tests/kernels/rounding.h"

namespace keel {
namespace {

template <class T>
struct Matrix {
    std::int64_t rows, columns, stride;
    std::vector<T> values;
    Matrix(std::int64_t r, std::int64_t c, const char* name, std::int64_t margin = 0)
        : rows(r),
          columns(c),
          stride(c + margin),
          values(static_cast<std::size_t>(r * (c + margin)), T(std::nanf(""))) {
        const Random random(5, Purpose::test, name);
        for (std::int64_t i = 0; i < r; ++i)
            for (std::int64_t j = 0; j < c; ++j)
                at(i, j) = T(static_cast<float>(random.uniform(static_cast<std::uint64_t>(i * c + j)) * 2 - 1));
    }
    Matrix(std::int64_t r, std::int64_t c, const std::vector<double>& from) : Matrix(r, c, "golden") {
        for (std::size_t i = 0; i < from.size(); ++i) values[i] = T(static_cast<float>(from[i]));
    }
    T& at(std::int64_t i, std::int64_t j) { return values[static_cast<std::size_t>(i * stride + j)]; }
    double value(std::int64_t i, std::int64_t j) const {
        return static_cast<double>(static_cast<float>(values[static_cast<std::size_t>(i * stride + j)]));
    }
    View<T> view() { return View<T>(values.data(), {rows, stride}).columns(0, columns); }
    View<T> flat() { return View<T>(values.data(), {columns}); }
};

// `sum` of `terms` products of total size `size`, in any order, with u = 2^-24 (Higham 3.1); results of two bytes are
// rounded once.
template <class C>
void expect_close(double got, double sum, double size, std::int64_t terms, const std::string& where) {
    double bound = 1.01 * static_cast<double>(terms + 2) * 0x1p-24 * size;
    bound += rounding_of<C>(std::abs(sum) + bound);
    EXPECT_LE(std::abs(got - sum), bound) << where;
}

template <class T, class Y>
void check_forward() {
    Stream stream(2);
    for (const bool with_bias : {false, true}) {
        Matrix<T> x(37, 70, "x", 5), w(45, 70, "w"), bias(1, 45, "bias");
        Matrix<Y> y(37, 45, "y", 3);
        LinearForward<T, Y> args{.y = y.view(), .x = x.view(), .w = w.view()};
        if (with_bias) args.bias = View<const T>(bias.flat());
        linear_forward<T, Y>(stream, args);
        for (std::int64_t i = 0; i < 37; ++i)
            for (std::int64_t j = 0; j < 45; ++j) {
                double sum = with_bias ? bias.value(0, j) : 0, size = std::abs(sum);
                for (std::int64_t k = 0; k < 70; ++k)
                    sum += x.value(i, k) * w.value(j, k), size += std::abs(x.value(i, k) * w.value(j, k));
                expect_close<Y>(y.value(i, j), sum, size, 70,
                                "y[" + std::to_string(i) + ", " + std::to_string(j) + "]");
            }
    }
}

TEST(Linear, ForwardMultipliesByTheTransposedWeightAndAddsTheBias) {
    check_forward<float, float>();
    check_forward<bf16, bf16>();
    check_forward<bf16, float>();
    check_forward<f16, f16>();
    check_forward<f16, float>();
}

template <class T>
void check_dgrad() {
    Stream stream(2);
    for (const bool accumulate : {false, true}) {
        Matrix<T> dy(37, 45, "dy", 2), w(45, 70, "w"), dx(37, 70, "dx", 1);
        Matrix<T> before = dx;
        linear_dgrad<T>(stream, {.dx = dx.view(), .dy = dy.view(), .w = w.view(), .accumulate = accumulate});
        for (std::int64_t i = 0; i < 37; ++i)
            for (std::int64_t k = 0; k < 70; ++k) {
                double sum = accumulate ? before.value(i, k) : 0, size = std::abs(sum);
                for (std::int64_t j = 0; j < 45; ++j)
                    sum += dy.value(i, j) * w.value(j, k), size += std::abs(dy.value(i, j) * w.value(j, k));
                expect_close<T>(dx.value(i, k), sum, size, 45,
                                "dx[" + std::to_string(i) + ", " + std::to_string(k) + "]");
            }
    }
}

TEST(Linear, DgradMultipliesByTheWeightAndAddsOnlyWhenAsked) {
    check_dgrad<float>();
    check_dgrad<bf16>();
    check_dgrad<f16>();
}

template <class T>
void check_wgrad() {
    Stream stream(2);
    Matrix<T> dy(37, 45, "dy", 2), x(37, 70, "x", 4);
    Matrix<float> dw(45, 70, "dw"), dbias(1, 45, "dbias");
    const Matrix<float> before = dw, bias_before = dbias;
    linear_wgrad<T>(stream, {.dw = dw.view(), .dy = dy.view(), .x = x.view()});
    bias_grad<T>(stream, {.dbias = dbias.flat(), .dy = dy.view()});
    for (std::int64_t j = 0; j < 45; ++j) {
        double bias = bias_before.value(0, j), bias_size = std::abs(bias);
        for (std::int64_t i = 0; i < 37; ++i) bias += dy.value(i, j), bias_size += std::abs(dy.value(i, j));
        expect_close<float>(dbias.value(0, j), bias, bias_size, 37, "dbias[" + std::to_string(j) + "]");
        for (std::int64_t k = 0; k < 70; ++k) {
            double sum = before.value(j, k), size = std::abs(sum);
            for (std::int64_t i = 0; i < 37; ++i)
                sum += dy.value(i, j) * x.value(i, k), size += std::abs(dy.value(i, j) * x.value(i, k));
            expect_close<float>(dw.value(j, k), sum, size, 37,
                                "dw[" + std::to_string(j) + ", " + std::to_string(k) + "]");
        }
    }
}

TEST(Linear, WgradAndBiasGradAddToWhatIsThere) {
    check_wgrad<float>();
    check_wgrad<bf16>();
    check_wgrad<f16>();
}

// The first micro-batch of a step writes: what was there, even NaN, is gone, and the sum is the one that adding to zero gives.
template <class T>
void check_wgrad_writes() {
    Stream stream(2);
    Matrix<T> dy(37, 45, "dy", 2), x(37, 70, "x", 4);
    Matrix<float> zero(45, 70, std::vector<double>(45 * 70, 0.0)), nan(45, 70, std::vector<double>(45 * 70, NAN));
    linear_wgrad<T>(stream, {.dw = zero.view(), .dy = dy.view(), .x = x.view()});
    linear_wgrad<T>(stream, {.dw = nan.view(), .dy = dy.view(), .x = x.view(), .accumulate = false});
    for (std::int64_t j = 0; j < 45; ++j)
        for (std::int64_t k = 0; k < 70; ++k) ASSERT_EQ(nan.value(j, k), zero.value(j, k)) << j << ", " << k;
}

TEST(Linear, WgradWritesWhenAskedNotToAccumulate) {
    check_wgrad_writes<float>();
    check_wgrad_writes<bf16>();
}

// Inputs are exact in both types, and so are these short sums in float: only results of two bytes are rounded.
template <class T>
void check_golden() {
    const Golden golden("ops/linear");
    Stream stream(2);
    Matrix<T> x(3, 5, golden["x"]), w(4, 5, golden["w"]), bias(1, 4, golden["bias"]), dy(3, 4, golden["dy"]),
        y(3, 4, "y"), dx(3, 5, "dx");
    Matrix<float> dw(4, 5, std::vector<double>(20, 0.0)), dbias(1, 4, std::vector<double>(4, 0.0));
    linear_forward<T>(stream, {.y = y.view(), .x = x.view(), .w = w.view(), .bias = View<const T>(bias.flat())});
    linear_dgrad<T>(stream, {.dx = dx.view(), .dy = dy.view(), .w = w.view()});
    linear_wgrad<T>(stream, {.dw = dw.view(), .dy = dy.view(), .x = x.view()});
    bias_grad<T>(stream, {.dbias = dbias.flat(), .dy = dy.view()});
    const auto same = [&](const auto& got, const char* name, double share) {
        for (std::size_t i = 0; i < got.values.size(); ++i) {
            const double want = golden[name][i];
            EXPECT_LE(std::abs(static_cast<double>(static_cast<float>(got.values[i])) - want),
                      share * std::abs(want))
                << name << " " << i;
        }
    };
    same(y, "y", rounding<T>);
    same(dx, "dx", rounding<T>);
    same(dw, "dw", 0);
    same(dbias, "dbias", 0);
}

TEST(Linear, AgreesWithTheGolden) {
    check_golden<float>();
    check_golden<bf16>();
    check_golden<f16>();
}

TEST(Linear, BiasGradHasTheSameBitsOnAnyNumberOfThreads) {
    Matrix<float> dy(1000, 333, "dy"), one(1, 333, "d"), three = one;
    Stream alone(1), crew(3);
    bias_grad<float>(alone, {.dbias = one.flat(), .dy = dy.view()});
    bias_grad<float>(crew, {.dbias = three.flat(), .dy = dy.view()});
    EXPECT_EQ(std::memcmp(one.values.data(), three.values.data(), one.values.size() * 4), 0);
}

template <class Call>
std::string message(Call call) {
    try {
        call();
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

TEST(Linear, ShapesThatDisagreeAreRefusedWithTheNumbers) {
    Stream stream(1);
    Matrix<float> x(3, 5, "x"), w(4, 5, "w"), y(3, 4, "y"), other(3, 6, "o"), wide(4, 5, "w", 1), bias(1, 3, "b");
    EXPECT_EQ(message([&] { linear_forward<float>(stream, {.y = y.view(), .x = other.view(), .w = w.view()}); }),
              "linear_forward: w is [4, 5], but x has rows of 6; w must be [out, 6]");
    EXPECT_EQ(message([&] { linear_forward<float>(stream, {.y = other.view(), .x = x.view(), .w = w.view()}); }),
              "linear_forward: y is [3, 6], but must be [3, 4]");
    EXPECT_EQ(message([&] { linear_forward<float>(stream, {.y = y.view(), .x = x.view(), .w = wide.view()}); }),
              "linear_forward: w has rows 6 elements apart; it must be contiguous");
    EXPECT_EQ(message([&] {
                  linear_forward<float>(
                      stream, {.y = y.view(), .x = x.view(), .w = w.view(), .bias = View<const float>(bias.flat())});
              }),
              "linear_forward: bias is [3], but must be [4]");
    EXPECT_EQ(message([&] { linear_dgrad<float>(stream, {.dx = x.view(), .dy = other.view(), .w = w.view()}); }),
              "linear_dgrad: w is [4, 5], but dy has rows of 6; w must be [6, in]");
    EXPECT_EQ(message([&] { linear_wgrad<float>(stream, {.dw = w.view(), .dy = y.view(), .x = w.view()}); }),
              "linear_wgrad: x has 4 tokens, but dy has 3; pass the x that forward read");
    EXPECT_EQ(message([&] { bias_grad<float>(stream, {.dbias = bias.flat(), .dy = y.view()}); }),
              "bias_grad: dbias is [3], but must be [4]");
}

}  // namespace
}  // namespace keel
