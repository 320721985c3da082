#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/random.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {
namespace {

// Vectors of formats.md for float -> bf16: ties go to even, NaN stays NaN, subnormals survive.
TEST(Bf16, RoundsToNearestEven) {
    const struct { std::uint32_t f32; std::uint16_t want; } cases[] = {
        {0x3dcccccd, 0x3dcd}, {0x40490000, 0x4049}, {0x477fe000, 0x4780}, {0x000116c2, 0x0001},
        {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x7f7f0000, 0x7f7f}, {0x7fc00000, 0x7fc0}};
    for (const auto& c : cases) EXPECT_EQ(bf16(std::bit_cast<float>(c.f32)).bits, c.want) << std::hex << c.f32;
    EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
}

float f16_value(std::uint32_t bits) { return static_cast<float>(std::bit_cast<f16>(static_cast<std::uint16_t>(bits))); }

// The definition: sign, 5 bits of exponent with a bias of 15, 10 of fraction.
TEST(F16, EveryValueIsWhatItsBitsSayAndComesBack) {
    for (std::uint32_t h = 0; h < 0x10000; ++h) {
        const int exponent = static_cast<int>(h >> 10 & 31u), fraction = static_cast<int>(h & 0x3ffu);
        const float got = f16_value(h);
        ASSERT_EQ(std::signbit(got), h >= 0x8000) << std::hex << h;
        if (exponent == 31 && fraction != 0) {
            ASSERT_TRUE(std::isnan(got)) << std::hex << h;
            ASSERT_TRUE(std::bit_cast<std::uint32_t>(got) & 0x400000u) << std::hex << h;  // quiet
            ASSERT_EQ(f16(got).bits, h | 0x200u) << std::hex << h;                       // otherwise as it was
            continue;
        }
        const double magnitude = exponent == 31   ? std::numeric_limits<double>::infinity()
                                 : exponent == 0 ? std::ldexp(fraction, -24)
                                                 : std::ldexp(1024 + fraction, exponent - 25);
        ASSERT_EQ(std::abs(static_cast<double>(got)), magnitude) << std::hex << h;
        ASSERT_EQ(f16(got).bits, h) << std::hex << h;
    }
}

// Between any two neighbours, from 0 over the subnormals to what would be 65536: the middle goes to the even one, and the floats
// beside it to the nearer one.
TEST(F16, RoundsToTheNearestAndTiesToEvenAtEveryBoundary) {
    for (const std::uint32_t sign : {0u, 0x8000u})
        for (std::uint32_t low = 0; low < 0x7c00; ++low) {
            const float below = f16_value(low), above = low == 0x7bff ? 65536.0f : f16_value(low + 1);
            const float middle = below + (above - below) / 2;  // exact: floats have 13 bits more
            const auto rounded = [&](float x) { return std::uint32_t{f16(sign ? -x : x).bits}; };
            ASSERT_EQ(rounded(middle), sign | (low % 2 == 0 ? low : low + 1)) << std::hex << low;
            ASSERT_EQ(rounded(std::nextafter(middle, below)), sign | low) << std::hex << low;
            ASSERT_EQ(rounded(std::nextafter(middle, above)), sign | (low + 1)) << std::hex << low;
        }
    for (const float x : {65536.0f, 1e10f, std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()})
        EXPECT_EQ(f16(x).bits, 0x7c00) << x;
    EXPECT_EQ(f16(std::numeric_limits<float>::denorm_min()).bits, 0);
    EXPECT_EQ(f16(std::bit_cast<float>(0x7f800001u)).bits, 0x7e00);  // a signalling NaN with a fraction f16 has no room for
}

TEST(Dtype, OfAnUnknownNameIsAnError) {
    for (const Dtype dtype : all_dtypes) EXPECT_EQ(dtype_named(short_name(dtype)), dtype);
    try {
        (void)dtype_named("fp16");
        FAIL();
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "there is no type \"fp16\"; it can be bf16, f16 or f32");
    }
}

// Words computed by an independent program that gives the three known-answer vectors of the paper (counter and key all
// zero, all ones, and the digits of pi). They fix where seed, purpose, name and index go: a seed's meaning never changes.
TEST(Random, IsPhilox4x32) {
    using Words = std::array<std::uint32_t, 4>;
    EXPECT_EQ(Random(0, Purpose::init, "").bits(0), (Words{0xf8f5c32a, 0x5597e4ff, 0x04170d75, 0x81b4185c}));
    EXPECT_EQ(Random(1, Purpose::test, "w").bits(7), (Words{0x6c485f07, 0xe1dc86e5, 0x31eb4e0e, 0xa43b6b74}));
    EXPECT_EQ(Random(0x123456789abcdef0, Purpose::init, "layers.3.qkv").bits(0xfedcba9876543210),
              (Words{0xb5bc6db1, 0x3f42c6cc, 0x6fadadd4, 0xe51db66c}));
}

TEST(Random, NormalsHaveMeanZeroAndVarianceOne) {
    const Random random(1, Purpose::test, "w");
    double mean = 0, square = 0;
    for (std::uint64_t i = 0; i < 20000; ++i) {
        const double n = random.normal(i);
        mean += n / 20000;
        square += n * n / 20000;
    }
    EXPECT_LT(std::abs(mean), 5 / std::sqrt(20000.0));           // five standard errors
    EXPECT_LT(std::abs(square - 1), 5 * std::sqrt(2 / 20000.0));
}

TEST(Stream, RunsEveryTileOnceOnAnyNumberOfThreads) {
    for (int threads : {1, 2, 3, 8}) {
        Stream stream(threads);
        for (int round = 0; round < 200; ++round) {
            std::vector<std::atomic<int>> seen(37);
            stream.parallel(37, [&](std::int64_t tile, int thread) {
                ASSERT_LT(thread, threads);
                seen[static_cast<std::size_t>(tile)]++;
            });
            for (auto& s : seen) ASSERT_EQ(s.load(), 1);
        }
    }
}

TEST(Stream, RefusesMoreThreadsThanAnyMachineStarts) {
    for (const int threads : {-1, Stream::max_threads + 1}) {
        try {
            Stream stream(threads);
            FAIL();
        } catch (const Error& e) {
            EXPECT_EQ(std::string(e.what()), concat("Stream: ", threads, " threads; give 1 to 1024, or 0 for every processor"));
            EXPECT_EQ(e.code(), ExitCode::usage);  // a number of threads comes from a flag
        }
    }
}

TEST(Stream, IsLentOneWorkspaceUntilItsLoanEnds) {
    std::byte first[8], second[16];
    Stream queue(Device::cudasim, nullptr, [](void*) {});
    const auto message_of_lending = [&](Stream& stream) {
        try {
            const Stream::Loan loan = stream.lend(second, 16);
            EXPECT_EQ(stream.shared_workspace(), second);
            EXPECT_EQ(stream.shared_bytes(), 16);
        } catch (const Error& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    Stream::Loan kept;
    {
        Stream::Loan loan = queue.lend(first, 8);
        EXPECT_NE(message_of_lending(queue).find("a stream of cudasim that has a workspace of 8"), std::string::npos);
        EXPECT_EQ(queue.shared_workspace(), first);  // whoever was refused takes nothing away
        kept = std::move(loan);
    }
    EXPECT_EQ(queue.shared_workspace(), first);
    kept = {};
    EXPECT_EQ(queue.shared_workspace(), nullptr);
    EXPECT_EQ(queue.shared_bytes(), 0);
    EXPECT_EQ(message_of_lending(queue), "");
    EXPECT_EQ(queue.shared_workspace(), nullptr);
    Stream crew(1);
    EXPECT_NE(message_of_lending(crew).find("a stream of cpu"), std::string::npos);
}

TEST(Stream, RethrowsTheErrorOfATile) {
    Stream stream(2);
    EXPECT_THROW(stream.parallel(8, [](std::int64_t t, int) { if (t == 5) fail("tile ", t); }), Error);
    stream.parallel(8, [](std::int64_t, int) {});  // and goes on working
}

TEST(View, NamesTheShapeThatIsWrong) {
    float x[6] = {};
    const View<float> v(x, {2, 3});
    try {
        expect_shape("rmsnorm: x", v, {3, 2});
        FAIL();
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "rmsnorm: x is [2, 3], but must be [3, 2]");
    }
    EXPECT_EQ(v.columns(1, 2).stride(), 3);
    EXPECT_THROW(v.rows(1, 2), Error);
}

}  // namespace
}  // namespace keel
