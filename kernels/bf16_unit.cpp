#include "kernels/bf16_unit.h"

#include <atomic>

#include "kernels/amx.h"

namespace keel {
namespace {

bool is_here(Bf16Unit unit) {
    if (unit == Bf16Unit::floats) return true;
    if (unit == Bf16Unit::dots) return KEEL_BF16_PAIRS;
#if KEEL_AMX
    return amx::available();
#else
    return false;
#endif
}

Bf16Unit best() {
    if (is_here(Bf16Unit::tiles)) return Bf16Unit::tiles;
#if KEEL_BF16_PAIRS
    if (__builtin_cpu_is("amd")) return Bf16Unit::dots;
#endif
    return Bf16Unit::floats;
}

std::atomic<Bf16Unit>& in_use() {
    static std::atomic<Bf16Unit> unit{best()};
    return unit;
}

}  // namespace

const char* name_of(Bf16Unit unit) {
    return unit == Bf16Unit::tiles ? "tiles" : unit == Bf16Unit::dots ? "dots" : "floats";
}

std::optional<Bf16Unit> bf16_unit_of(const std::string& name) {
    if (name == "auto") return best();
    for (const Bf16Unit unit : {Bf16Unit::tiles, Bf16Unit::dots, Bf16Unit::floats})
        if (name == name_of(unit) && is_here(unit)) return unit;
    return std::nullopt;
}

Bf16Unit bf16_unit() { return in_use().load(std::memory_order_relaxed); }

void use_bf16_unit(Bf16Unit unit) { in_use().store(unit, std::memory_order_relaxed); }

}  // namespace keel
