// CTest runs these programs once more for each unit that multiplies bf16 besides the one that is taken unasked: the
// environment variable KEEL_TEST_BF16_BY names it.
#include "kernels/bf16_unit.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/matmul.h"

namespace keel {
namespace {

std::string asked() {
    const char* const by = std::getenv("KEEL_TEST_BF16_BY");
    return by ? by : "auto";
}

const bool chosen = [] {
    const auto unit = bf16_unit_of(asked());
    if (unit) use_bf16_unit(*unit);
    return unit.has_value();
}();

TEST(Bf16Unit, IsTheOneThatWasAskedForAndProductsNameIt) {
    if (!chosen) GTEST_SKIP() << "this processor, or this build, has no " << asked();
    EXPECT_EQ(bf16_unit(), *bf16_unit_of(asked()));
    const std::string isa = matmul_isa<bf16>();
    switch (bf16_unit()) {
        case Bf16Unit::tiles: EXPECT_EQ(isa, "amx-bf16"); break;
        case Bf16Unit::dots: EXPECT_EQ(isa, "avx512-bf16"); break;
        case Bf16Unit::floats: EXPECT_EQ(isa, matmul_isa<float>());
    }
}

TEST(Bf16Unit, HasANameAndIsFoundByItWhereItIs) {
    EXPECT_EQ(bf16_unit_of("floats"), Bf16Unit::floats);
    EXPECT_FALSE(bf16_unit_of("tile"));
    EXPECT_FALSE(bf16_unit_of(""));
    for (const std::string name : {"tiles", "dots"})
        if (const auto unit = bf16_unit_of(name)) {
            EXPECT_EQ(name, name_of(*unit));
        }
    ASSERT_TRUE(bf16_unit_of("auto"));
    if (bf16_unit_of("tiles")) {
        EXPECT_EQ(bf16_unit_of("auto"), Bf16Unit::tiles);
    }
}

}  // namespace
}  // namespace keel
