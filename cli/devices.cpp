// cli/devices.cpp: `keel devices`: what --run.device can be on this machine: what each is made of, or why it is not offered.

#include <CLI/App.hpp>
#include <cstdio>

#include "cli/commands.h"
#include "kernels/base/stream.h"
#include "kernels/gpu.h"
#include "kernels/matmul.h"

namespace keel {
namespace {

void print_gpu(Device device) {
    const std::string word(name(device));
    if (const auto why = why_no_gpu(device)) {
        std::printf("%-8s not offered: %s\n", word.c_str(), why->c_str());
        return;
    }
    const auto gpu = open_gpu(device);
    std::printf("%-8s %s\n%-8s %s\n", word.c_str(), gpu->describe().c_str(), "", gpu->libraries().c_str());
}

}  // namespace

void add_devices(CLI::App& app) {
    app.add_subcommand("devices", "show what --run.device can be here, with architecture and versions, or why it cannot")
        ->callback([] {
            std::printf("%-8s %d processors, built for %s; products: %s in f32, %s in bf16, %s in f16\n", "cpu", available_cpus(), KEEL_ARCH,
                        matmul_isa<float>(), matmul_isa<bf16>(), matmul_isa<f16>());
            print_gpu(Device::cuda);
            print_gpu(Device::cudasim);
        });
}

}  // namespace keel
