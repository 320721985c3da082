// kernels/bf16_unit.h: what multiplies bf16 on this processor: its tile registers (AMX), its dot products of pairs
// (AVX-512 BF16), or float arithmetic on operands converted while they are packed.
//
// Tiles win where there are any. Dot products do twice the work of float arithmetic on AMD's processors (from Zen 4 on)
// and half to two thirds of it on Intel's, so only the former take them by default. Each has bits of its own: the choice
// follows from the processor alone, never from a measurement.
// The environment variable KEEL_MAX_ISA (amx, avx512_bf16 or avx512) allows no more than it names; what it names is taken
// if the build has it. So one processor computes, tests and measures what another would.
#pragma once

#if defined(__x86_64__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__)
#define KEEL_BF16_PAIRS 1  // operands packed in pairs of k: tiles, if built (kernels/amx.h), and dot products
#else
#define KEEL_BF16_PAIRS 0
#endif

namespace keel {

enum class Bf16Unit { tiles, dots, floats };

// Asks once. Throws Error (usage) if KEEL_MAX_ISA is none of its values.
Bf16Unit bf16_unit();

}  // namespace keel
