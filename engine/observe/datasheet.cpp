#include "engine/observe/datasheet.h"

namespace keel {
namespace {

struct Sheet {
    std::string_view words, form;  // both are in the name; form, of a card rather than a module, may be empty
    double tflops;
};
// Half of what is printed where only the peak with structured sparsity is. The first that fits: forms before the module.
constexpr Sheet sheets[] = {
    {"GB200", "", 2500}, {"B200", "", 2250},    {"GH200", "", 989}, {"H200", "NVL", 835.5}, {"H200", "", 989},
    {"H100", "PCIe", 756.5}, {"H100", "NVL", 835.5}, {"H100", "", 989},  {"A100", "", 312},      {"L40S", "", 362},
};

}  // namespace

double datasheet_tflops(std::string_view gpu) {
    for (const Sheet& s : sheets)
        if (gpu.find(s.words) != std::string_view::npos && gpu.find(s.form) != std::string_view::npos) return s.tflops;
    return 0;
}

}  // namespace keel
