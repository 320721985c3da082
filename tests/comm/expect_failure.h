// tests/comm/expect_failure.h: a case in which ranks fail, on ranks that are threads of this process: each says why, the
// cause is what comes out, and nobody hangs.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/comm/suite.h"

namespace keel::comm_suite {

// `run` gives a body to failure_ranks ranks, and throws what they end with.
inline void expect_failure(const FailureCase& failure, const std::function<void(const std::function<void(World&)>&)>& run) {
    std::vector<std::string> said(failure_ranks);
    const auto begin = std::chrono::steady_clock::now();
    try {
        run([&](World& world) {
            try {
                failure.body(world);
            } catch (const Error& e) {
                said[static_cast<std::size_t>(world.rank())] = e.what();
                throw;
            }
        });
        ADD_FAILURE() << "it went well";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(failure.cause), std::string::npos) << e.what();
        EXPECT_EQ(e.code(), failure.code) << e.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));  // many times what it takes
    for (int rank = 0; rank < failure_ranks; ++rank)
        for (const std::string& text : failure.says(rank, failure_ranks))
            EXPECT_NE(said[static_cast<std::size_t>(rank)].find(text), std::string::npos)
                << "rank " << rank << " does not say \"" << text << "\", but: " << said[static_cast<std::size_t>(rank)];
}

}  // namespace keel::comm_suite
