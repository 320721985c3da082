// CUB's radix sort: stable, by the bits asked for, with the scratch it asked for.
#include <cub/device/device_radix_sort.cuh>

#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

TEST(Cub, SortPairsIsStableAndChecksItsScratch) {
    constexpr int n = 50;
    int *keys = nullptr, *values = nullptr, *sorted = nullptr, *order = nullptr;
    for (int** p : {&keys, &values, &sorted, &order}) cudaMalloc(p, n * sizeof(int));
    for (int i = 0; i < n; ++i) keys[i] = i * 7 % 5, values[i] = i;
    std::size_t bytes = 0;
    ASSERT_EQ(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted, values, order, n, 0, 3), cudaSuccess);
    void* temp = nullptr;
    cudaMalloc(&temp, bytes);
    ASSERT_EQ(cub::DeviceRadixSort::SortPairs(temp, bytes, keys, sorted, values, order, n, 0, 3), cudaSuccess);
    for (int i = 1; i < n; ++i)
        EXPECT_TRUE(sorted[i - 1] < sorted[i] || (sorted[i - 1] == sorted[i] && order[i - 1] < order[i])) << i;
    for (int i = 0; i < n; ++i) EXPECT_EQ(sorted[i], keys[order[i]]);
    EXPECT_TRUE(sim::take_findings().empty());
    --bytes;
    EXPECT_EQ(cub::DeviceRadixSort::SortPairs(temp, bytes, keys, sorted, values, order, n, 0, 3),
              cudaErrorInvalidValue);
    const auto findings = sim::take_findings();
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_NE(findings[0].text.find("bytes of scratch"), std::string::npos);
    for (void* p : {static_cast<void*>(keys), static_cast<void*>(values), static_cast<void*>(sorted),
                    static_cast<void*>(order), temp})
        cudaFree(p);
    cudaGetLastError();
}

}  // namespace
}  // namespace keel::on_cudasim
