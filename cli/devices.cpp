// cli/devices.cpp: `keel devices`: what --run.device can be on this machine: what each is made of, or why it is not offered.

#include <CLI/App.hpp>
#include <cstdio>

#include "cli/commands.h"
#include "comm/nccl.h"
#include "engine/observe/datasheet.h"
#include "engine/observe/print.h"
#include "kernels/base/error.h"
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
    const int count = gpu_count(device);
    for (int i = 0; i < (device == Device::cuda ? count : 1); ++i) {  // simulated ones are all alike
        const auto gpu = open_gpu(device, i);
        const double tflops = datasheet_tflops(gpu->name());
        std::printf("%-8s %s%s%s\n", word.c_str(), gpu->describe().c_str(),
                    device == Device::cuda ? concat(", ", gpu->bus_id()).c_str() : concat(", ", count, " of them").c_str(),
                    tflops > 0 ? print(", %g TFLOP/s in bf16 by its datasheet", tflops).c_str() : "");
        if (i == 0) std::printf("%-8s %s, %s\n%-8s %s\n", "", gpu->libraries().c_str(), nccl_version(device).c_str(), "", gpu->kernels().c_str());
    }
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
