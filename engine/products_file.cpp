#include "engine/products_file.h"

#include <cstdio>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/products.h"

namespace keel {

void read_products(Device device, const std::filesystem::path& run_dir) {
    const std::filesystem::path file = run_dir / "products.txt";
    if (device != Device::cpu && std::filesystem::exists(file)) prefer_products(device, read_file(file));
}

void write_products(Device device, const std::filesystem::path& run_dir) {
    if (device == Device::cpu) return;
    try {
        write_file_atomically(run_dir / "products.txt", chosen_products(device));
    } catch (const Error& e) {
        std::fprintf(stderr, "keel: warning: %s\n", e.what());
    }
}

}  // namespace keel
