#include "kernels/convert.h"

#include <gtest/gtest.h>

#include <bit>

#include "tests/kernels/tensor.h"

namespace keel {
namespace {

const std::vector<std::int64_t> sizes{0, 1, 2, 7, 64, 65, 257, 40001};

// Casts and one rounded addition have one right answer: zero tolerance against the scalar types.
template <class To, class From> void casts() {
    for (const std::int64_t n : sizes) {
        const Values x = random_values<From>("x", n);
        const auto got = on_any_threads([&](Stream& stream) -> std::vector<Values> {
            Tensor<From> in(x);
            Tensor<To> out(n);
            convert<To, From>(stream, {.y = out.view(), .x = in.read()});
            EXPECT_TRUE(out.untouched());
            return {out.values()};
        });
        Tensor<To> want(x);
        EXPECT_TRUE(same_bits(got[0], want.values())) << n;
    }
}
TEST(Convert, IsTheScalarCast) {
    casts<float, float>();
    casts<float, bf16>();
    casts<bf16, float>();
    casts<bf16, bf16>();
    casts<float, f16>();
    casts<f16, float>();
}

TEST(Convert, KeepsNaNInfinityAndSubnormals) {
    std::vector<float> x;
    for (const std::uint32_t bits :
         {0x7fc00000u, 0x7f800001u, 0xff800001u, 0x7f800000u, 0xff800000u, 0x7f7fffffu, 0x000116c2u, 0x80000000u})
        x.push_back(std::bit_cast<float>(bits));
    std::vector<bf16> y(x.size(), bf16(0));
    const auto n = static_cast<std::int64_t>(x.size());
    convert<bf16, float>(stream_of(1), {.y = View<bf16>(y.data(), {n}), .x = View<const float>(x.data(), {n})});
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i].bits, bf16(x[i]).bits) << i;
}

template <class T> void adds() {
    for (const std::int64_t n : sizes) {
        const Values a = random_values<T>("a", n), b = random_values<T>("b", n, 1e-3);
        const auto run = [&](Stream& stream, int into) -> std::vector<Values> {
            Tensor<T> left(a), right(b), apart(n);
            Tensor<T>& y = into == 0 ? apart : into == 1 ? left : right;
            add<T>(stream, {.y = y.view(), .a = left.read(), .b = right.read()});
            EXPECT_TRUE(y.untouched());
            return {y.values()};
        };
        const auto got = on_any_threads([&](Stream& stream) { return run(stream, 0); });
        Values sum(a.size());
        for (std::size_t i = 0; i < sum.size(); ++i)
            sum[i] = static_cast<double>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
        EXPECT_TRUE(same_bits(got[0], Tensor<T>(sum).values())) << n;
        for (const int into : {1, 2}) EXPECT_TRUE(same_bits(run(stream_of(2), into)[0], got[0])) << n;
    }
}
TEST(Add, IsOneRoundedAdditionAlsoInPlace) {
    adds<float>();
    adds<bf16>();
    adds<f16>();
}

TEST(Convert, RefusesSizesThatDisagree) {
    Tensor<float> x(4), y(5);
    EXPECT_EQ(error_of([&] { convert<float, float>(stream_of(1), {.y = y.view(), .x = x.read()}); }),
              "convert: x has 4 elements, but y has 5; they must be as many");
    EXPECT_EQ(error_of([&] { add<float>(stream_of(1), {.y = y.view(), .a = x.read(), .b = y.read()}); }),
              "add: a has 4 and b 5 elements, but y has 5; they must be as many");
}

}  // namespace
}  // namespace keel
