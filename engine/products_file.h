// engine/products_file.h: products.txt in a run's folder: which of cuBLASLt's algorithms its GPU takes for which product, to be read
// by people, and by the run's next start, which takes the same.
#pragma once

#include <filesystem>

#include "kernels/base/stream.h"

namespace keel {

// Both on the thread whose products they are. No file is no choice; one that cannot be written is a warning.
void read_products(Device device, const std::filesystem::path& run_dir);
void write_products(Device device, const std::filesystem::path& run_dir);

}  // namespace keel
