// engine/observe/datasheet.h: what a GPU can do by its maker's datasheet, found by the name that its driver gives it.
#pragma once

#include <string_view>

namespace keel {

// Dense bf16 peak in TFLOP/s, of one GPU; 0 for one that is not known. "NVIDIA H100 80GB HBM3" has 989.
double datasheet_tflops(std::string_view gpu);

}  // namespace keel
