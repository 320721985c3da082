// kernels/bf16_unit.h: what multiplies bf16 on this processor: its tile registers (AMX), its dot products of pairs
// (AVX-512 BF16), or float arithmetic on operands converted while they are packed.
//
// Tiles win where there are any. Dot products do twice the work of float arithmetic on AMD's processors from Zen 4 on
// (464 against 234 GFLOP/s out of registers on two processors) and less than half on Intel's (182 to 213 against 485),
// so only the former take them unasked. Each has bits of its own: which one is taken follows from the processor alone
// or from what the user says (--run.bf16_by), never from a measurement.
#pragma once

#include <optional>
#include <string>

#if defined(__x86_64__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__)
#define KEEL_BF16_PAIRS 1  // operands packed in pairs of k: dot products, and tiles if built (kernels/amx.h)
#else
#define KEEL_BF16_PAIRS 0
#endif

namespace keel {

enum class Bf16Unit { tiles, dots, floats };

const char* name_of(Bf16Unit unit);
// "auto" is what wins here. Nothing if the processor or the build has no such unit, or there is none of that name.
std::optional<Bf16Unit> bf16_unit_of(const std::string& name);

// The one in use, of the whole process: "auto" until another is chosen, before work begins.
Bf16Unit bf16_unit();
void use_bf16_unit(Bf16Unit unit);

}  // namespace keel
