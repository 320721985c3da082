#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/simd.h"

namespace keel {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

float exp_of(float x) { return simd::exp(simd::set(x))[0]; }

// Every 997th float of both signs up to 128 (2 million values), in units of the last place of the exact result. 1.1 is
// what an exhaustive run found, 1.03, and a margin for compilers that contract products differently.
TEST(Simd, ExpIsWithinAboutOneUlpOnItsWholeRange) {
    double worst = 0;
    float where = 0;
    for (const std::uint32_t sign : {0u, 0x80000000u})
        for (std::uint32_t bits = 0; bits < 0x43000000u; bits += 997) {
            const float x = std::bit_cast<float>(bits | sign);
            const float y = exp_of(x);
            if (x < -87.33f) {
                ASSERT_EQ(y, 0.0f) << x;
            } else if (x > 88.722835f) {
                ASSERT_EQ(y, infinity) << x;
            } else {
                const double want = std::exp(static_cast<double>(x));
                const double error = std::abs(static_cast<double>(y) - want) / std::ldexp(1.0, std::ilogb(want) - 23);
                if (error > worst) worst = error, where = x;
            }
        }
    EXPECT_LE(worst, 1.1) << "at " << where;
}

TEST(Simd, ExpOfNonpositiveHasTheBitsOfExp) {
    for (std::uint32_t bits = 0; bits <= 0x7f800000u; bits += 991) {
        const float x = std::bit_cast<float>(bits | 0x80000000u);
        ASSERT_EQ(simd::exp_nonpositive(simd::set(x))[0], exp_of(x)) << x;
    }
    EXPECT_EQ(simd::exp_nonpositive(simd::set(-infinity))[0], 0.0f);
    EXPECT_TRUE(std::isnan(simd::exp_nonpositive(simd::set(std::numeric_limits<float>::quiet_NaN()))[0]));
}

TEST(Simd, CoarseExpIsWithinWhatItsCommentDerives) {
    const auto of = [](float x) { return simd::exp_coarse(simd::set(x))[0]; };
    for (const std::uint32_t sign : {0u, 0x80000000u})
        for (std::uint32_t bits = 0; bits < 0x43000000u; bits += 997) {
            const float x = std::bit_cast<float>(bits | sign);
            const double want = std::exp(static_cast<double>(x)), got = static_cast<double>(of(x));
            if (x < -87.33f) {
                ASSERT_TRUE(got >= 0 && got < 0x1p-126) << x;
            } else if (x > 88.73f) {
                ASSERT_EQ(of(x), infinity) << x;
            } else if (x < 88.72f) {
                ASSERT_LE(std::abs(got - want), std::exp2(-16.5) * want) << x;
            }
        }
    EXPECT_EQ(of(-1000), 0.0f);
    EXPECT_EQ(of(-infinity), 0.0f);
    EXPECT_EQ(of(infinity), infinity);
    EXPECT_TRUE(std::isnan(of(std::numeric_limits<float>::quiet_NaN())));
}

// One Newton step from 2^-14 leaves 2^-28, and the step itself rounds once: below 1 ulp.
TEST(Simd, ReciprocalIsWithinOneUlp) {
    for (std::uint32_t bits = std::bit_cast<std::uint32_t>(0x1p-125f); bits <= std::bit_cast<std::uint32_t>(0x1p125f);
         bits += 997) {
        const float x = std::bit_cast<float>(bits), y = simd::reciprocal(simd::set(x))[0];
        const double want = 1 / static_cast<double>(x);
        ASSERT_LE(std::abs(static_cast<double>(y) - want), std::ldexp(1.0, std::ilogb(want) - 23)) << x;
    }
    EXPECT_EQ(simd::reciprocal(simd::set(1))[0], 1.0f);
    EXPECT_EQ(simd::reciprocal(simd::set(infinity))[0], 0.0f);
    EXPECT_TRUE(std::isnan(simd::reciprocal(simd::set(std::numeric_limits<float>::quiet_NaN()))[0]));
}

TEST(Simd, ExpIsRightAtTheEdges) {
    EXPECT_EQ(exp_of(0.0f), 1.0f);
    EXPECT_EQ(exp_of(-0.0f), 1.0f);
    EXPECT_EQ(exp_of(infinity), infinity);
    EXPECT_EQ(exp_of(-infinity), 0.0f);
    EXPECT_EQ(exp_of(std::numeric_limits<float>::max()), infinity);
    EXPECT_EQ(exp_of(std::numeric_limits<float>::lowest()), 0.0f);
    EXPECT_TRUE(std::isfinite(exp_of(88.722835f)));
    EXPECT_EQ(exp_of(std::nextafter(88.722835f, 100.0f)), infinity);
    EXPECT_GE(exp_of(-87.33f), std::numeric_limits<float>::min());
    EXPECT_TRUE(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
    EXPECT_TRUE(std::isnan(exp_of(-std::numeric_limits<float>::signaling_NaN())));
}

// All 65536 bf16 read exactly; stores round as bf16's constructor does, ties, overflow, subnormals and NaN included.
TEST(Simd, Bf16LoadsAndStoresAreThoseOfTheScalarType) {
    for (std::uint32_t high = 0; high < 0x10000u; ++high)
        for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            const float x = std::bit_cast<float>(high << 16 | low);
            bf16 stored[simd::width];
            simd::store(stored, simd::set(x));
            const bf16 want(x);
            ASSERT_EQ(stored[simd::width - 1].bits, want.bits) << std::hex << high << " " << low;
            ASSERT_EQ(std::bit_cast<std::uint32_t>(simd::load(stored)[0]), static_cast<std::uint32_t>(stored[0].bits)
                                                                               << 16);
        }
}

// The processor converts whole vectors, and takes subnormals for zero: one among other numbers is still rounded.
TEST(Simd, ASubnormalAmongOtherNumbersIsStoredAsBf16RoundsIt) {
    const float kinds[] = {1.0f, -1e-39f, std::numeric_limits<float>::quiet_NaN(), 0.0f, 3.4e38f, 1e-45f, -2.5f};
    for (std::size_t first = 0; first < std::size(kinds); ++first) {
        float x[simd::width];
        bf16 whole[simd::width], part[simd::width];
        for (std::size_t i = 0; i < std::size(x); ++i) x[i] = i == first ? 1e-40f : kinds[(first + i) % std::size(kinds)];
        simd::store(whole, simd::load(x));
        simd::store_part(part, simd::load(x), simd::width - 1);
        for (std::size_t i = 0; i < std::size(x); ++i) {
            EXPECT_EQ(whole[i].bits, bf16(x[i]).bits) << x[i];
            if (i + 1 < std::size(x)) {
                EXPECT_EQ(part[i].bits, bf16(x[i]).bits) << x[i];
            }
        }
    }
}

TEST(Simd, PartsLeaveTheOtherElementsAlone) {
    for (std::int64_t n = 0; n < simd::width; ++n) {
        std::vector<float> x(static_cast<std::size_t>(n));  // exactly n: the sanitizer sees a read past the end
        std::vector<bf16> h(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) + 1, h[i] = bf16(x[i]);
        const simd::Float f = simd::load_part(x.data(), n, -7), b = simd::load_part(h.data(), n, -7);
        for (int i = 0; i < simd::width; ++i) {
            EXPECT_EQ(f[i], i < n ? static_cast<float>(i) + 1 : -7);
            EXPECT_EQ(b[i], i < n ? static_cast<float>(i) + 1 : -7);
        }
        std::vector<float> y(simd::width, 5);
        std::vector<bf16> z(simd::width, bf16(5));
        simd::store_part(y.data(), simd::set(3), n);
        simd::store_part(z.data(), simd::set(3), n);
        for (std::size_t i = 0; i < simd::width; ++i) {
            EXPECT_EQ(y[i], i < static_cast<std::size_t>(n) ? 3 : 5);
            EXPECT_EQ(static_cast<float>(z[i]), i < static_cast<std::size_t>(n) ? 3 : 5);
        }
    }
}

TEST(Simd, SweepVisitsEveryElementOnce) {
    for (std::int64_t n = 0; n < 200; ++n) {
        std::vector<float> seen(static_cast<std::size_t>(n), 0);
        simd::sweep<4>(n, [&](auto at, auto) { at.store(seen.data(), at.load(seen.data()) + 1.0f); });
        simd::sweep(n, [&](auto at) { at.store(seen.data(), at.load(seen.data()) + 1.0f); });
        for (const float s : seen) ASSERT_EQ(s, 2) << n;
    }
}

TEST(Simd, ReductionsUseEveryLane) {
    for (int i = 0; i < simd::width; ++i) {
        simd::Float v{};
        v[i] = 3;
        EXPECT_EQ(simd::sum(v), 3);
        EXPECT_EQ(simd::max_lane(v), 3);
        EXPECT_EQ(simd::max_lane(v - 5.0f), -2);
        EXPECT_EQ(simd::sqrt(v * v)[i], 3);
    }
}

// A vector of floats through f16 memory and back by the vector functions, and by the scalar type.
TEST(Simd, F16HasTheBitsOfTheScalarType) {
    const auto same = [](const float* x) {
        f16 whole[simd::width], part[simd::width] = {};
        simd::store(whole, simd::load(x));
        simd::store_part(part, simd::load(x), simd::width - 1);
        const simd::Float back = simd::load(whole), back_part = simd::load_part(whole, simd::width - 1, 2.0f),
                          rounded = simd::rounded<f16>(simd::load(x));
        for (int i = 0; i < simd::width; ++i) {
            const f16 want(x[i]);
            const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(want));
            if (whole[i].bits != want.bits || std::bit_cast<std::uint32_t>(float(back[i])) != bits ||
                std::bit_cast<std::uint32_t>(float(rounded[i])) != bits)
                return false;
            const bool last = i == simd::width - 1;
            if (part[i].bits != (last ? 0 : want.bits) ||
                std::bit_cast<std::uint32_t>(float(back_part[i])) != (last ? std::bit_cast<std::uint32_t>(2.0f) : bits))
                return false;
        }
        return true;
    };
    float x[simd::width];
    for (std::uint32_t h = 0; h < 0x10000; h += simd::width) {  // every f16
        f16 raw[simd::width];
        for (std::uint32_t i = 0; i < simd::width; ++i) {
            raw[i] = std::bit_cast<f16>(std::uint16_t(h + i));
            x[i] = static_cast<float>(raw[i]);
        }
        const simd::Float loaded = simd::load(raw);
        ASSERT_EQ(std::memcmp(&loaded, x, sizeof x), 0) << std::hex << h;
        ASSERT_TRUE(same(x)) << std::hex << h;
    }
    for (std::uint32_t h = 0; h < 0x10000; h += simd::width)  // every middle between two, and the floats beside it
        for (const std::uint32_t beside : {0xfffu, 0x1000u, 0x1001u}) {
            for (std::uint32_t i = 0; i < simd::width; ++i)
                x[i] = std::bit_cast<float>(
                    std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<f16>(std::uint16_t(h + i)))) + beside);
            ASSERT_TRUE(same(x)) << std::hex << h << " " << beside;
        }
    for (std::uint64_t bits = 0; bits < 0x100000000; bits += 9973) {  // and floats all over, NaN among them
        for (float& v : x) v = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        ASSERT_TRUE(same(x)) << std::hex << bits;
    }
}

}  // namespace
}  // namespace keel
