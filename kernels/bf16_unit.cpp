#include "kernels/bf16_unit.h"

#include <cstdlib>
#include <string_view>

#include "kernels/amx.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

Bf16Unit choose() {
    const char* const asked = std::getenv("KEEL_MAX_ISA");
    const std::string_view most = asked ? asked : "";
    if (!most.empty() && most != "amx" && most != "avx512_bf16" && most != "avx512")
        fail_usage("KEEL_MAX_ISA is ", most, "; it may be amx, avx512_bf16 or avx512, or not be set");
#if KEEL_AMX
    if ((most.empty() || most == "amx") && amx::available()) return Bf16Unit::tiles;
#endif
#if KEEL_BF16_PAIRS
    if (most == "avx512_bf16" || (most != "avx512" && __builtin_cpu_is("amd"))) return Bf16Unit::dots;
#endif
    return Bf16Unit::floats;
}

}  // namespace

Bf16Unit bf16_unit() {
    static const Bf16Unit unit = choose();
    return unit;
}

}  // namespace keel
