// The self-test of a machine: passes on one that computes rightly, and names the core of one that does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/fault/self_test.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

std::string failure(const Tampering& tampering) {
    const auto cores = cores_to_test(0, 1);
    try {
        self_test("node7", cores, tampering);
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ExitCode::device);
        return e.what();
    }
    return "";
}

TEST(SelfTest, PassesWhereNothingIsWrong) { EXPECT_EQ(failure({}), ""); }

TEST(SelfTest, OneWrongBitOfAProductNamesTheCoreAndTheElement) {
    const int bad = cores_to_test(0, 1).back();
    for (const int bit : {0, 12, 31}) {
        const std::string said = failure({.product = [&](int core, std::span<float> product) {
            if (core != bad) return;
            std::uint32_t bits;
            std::memcpy(&bits, &product[2 * 80 + 5], 4);
            bits ^= std::uint32_t{1} << bit;
            std::memcpy(&product[2 * 80 + 5], &bits, 4);
        }, .memory = {}});
        EXPECT_NE(said.find(concat("the self-test failed on node7: core ", bad, " multiplied wrongly in float32: element (2, 5)")),
                  std::string::npos)
            << said;
        EXPECT_NE(said.find("Take this machine out"), std::string::npos) << said;
    }
}

TEST(SelfTest, ANotANumberIsNoRightAnswer) {
    const std::string said = failure({.product = [](int, std::span<float> product) { product.back() = std::numeric_limits<float>::quiet_NaN(); },
                                      .memory = {}});
    EXPECT_NE(said.find("element (47, 79) of a product is nan"), std::string::npos) << said;
}

TEST(SelfTest, OneBitOfMemoryThatFlipsNamesItsPlace) {
    const int bad = cores_to_test(0, 1).front();
    const std::string said = failure({.product = {}, .memory = [&](int core, std::span<std::uint64_t> memory) {
        if (core == bad) memory[1000] ^= 1u << 9;
    }});
    EXPECT_NE(said.find(concat("core ", bad, " read wrongly from memory it had written: the word at byte 8000 is 5555555555555755, "
                                             "and must be 5555555555555555")),
              std::string::npos)
        << said;
}

// Two cells that answer to one address hold the same word, which alternating bits do not show.
TEST(SelfTest, MemoryThatAnswersForAnotherPlaceIsFound) {
    EXPECT_NE(failure({.product = {}, .memory = [](int, std::span<std::uint64_t> memory) { memory[77] = memory[4096 + 77]; }}), "");
}

TEST(SelfTest, RanksOfAMachineShareItsCores) {
    const auto all = cores_to_test(0, 1);
    std::vector<int> shared;
    for (int rank = 0; rank < 3; ++rank)
        for (const int core : cores_to_test(rank, 3)) shared.push_back(core);
    std::ranges::sort(shared);
    const auto twice = std::ranges::unique(shared);
    shared.erase(twice.begin(), twice.end());
    EXPECT_EQ(shared, all);  // each once, or, where ranks are bound, each by everyone who may use it
}

}  // namespace
}  // namespace keel
