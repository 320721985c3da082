// tests/sim/sweep_kernel.h: one kernel over one buffer, swept. The kernels of these tests come in two: with a seeded
// bug, which must be found, and fixed, which must stay silent.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/async.cuh"
#include "kernels/cudasim/sweep.h"
#include "kernels/device.cuh"
#include "kernels/mma.cuh"

namespace keel::on_cudasim {

struct Grid {
    unsigned blocks = 1, threads = 32;
    std::size_t shared_bytes = 0;
    std::source_location where = std::source_location::current();
};

// kernel(x, more...) once, with x the device's copy of `start`; returns what it holds afterwards.
template <class T, class... Params, class... More>
std::vector<T> run_once(const Grid& grid, const std::vector<T>& start, void (*kernel)(T*, Params...), More... more) {
    std::vector<T> host = start;
    T* x = nullptr;
    cudaMalloc(&x, host.size() * sizeof(T));
    cudaMemcpy(x, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
    cudaLaunchConfig_t config{};
    config.gridDim = grid.blocks;
    config.blockDim = grid.threads;
    config.dynamicSmemBytes = grid.shared_bytes;
    config.site = grid.where;
    cudaLaunchKernelEx(&config, kernel, x, more...);
    cudaMemcpy(host.data(), x, host.size() * sizeof(T), cudaMemcpyDeviceToHost);
    cudaFree(x);
    return host;
}

// The same on every schedule.
template <class T, class... Params, class... More>
sim::SweepResult sweep_kernel(const Grid& grid, const std::vector<T>& start, void (*kernel)(T*, Params...),
                              More... more) {
    return sim::sweep({}, [&](sim::Outputs& outputs) {
        const std::vector<T> host = run_once(grid, start, kernel, more...);
        outputs.add("x", host.data(), host.size() * sizeof(T));
    });
}

inline std::vector<float> counting(int n) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i);
    return x;
}

// The line after the one it is written on, as findings show it: "races_test.cpp:42".
inline std::string next_line(std::source_location here = std::source_location::current()) {
    const std::string file = here.file_name();
    return file.substr(file.rfind('/') + 1) + ":" + std::to_string(here.line() + 1);
}

}  // namespace keel::on_cudasim
