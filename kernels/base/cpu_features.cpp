#include "kernels/base/cpu.h"

namespace keel {

// What a compiler uses by itself where -march allows it: one instruction that is not there is enough. Constants only: this
// file is compiled for the new processor, and nothing of it may run before the check.
const char* const compiled_features[] = {
#if defined(__AVX2__)
    "avx2",
#endif
#if defined(__FMA__)
    "fma",
#endif
#if defined(__AVX512F__)
    "avx512f",
#endif
#if defined(__AVX512BW__)
    "avx512bw",
#endif
#if defined(__AVX512VL__)
    "avx512vl",
#endif
#if defined(__AVX512DQ__)
    "avx512dq",
#endif
#if defined(__AVX512BF16__)
    "avx512bf16",
#endif
#if defined(__BMI2__)
    "bmi2",
#endif
#if defined(__GFNI__)
    "gfni",
#endif
#if defined(__AVX512IFMA__)
    "avx512ifma",
#endif
#if defined(__AVX512VBMI__)
    "avx512vbmi",
#endif
#if defined(__AVX512VBMI2__)
    "avx512vbmi2",
#endif
#if defined(__AVX512VNNI__)
    "avx512vnni",
#endif
#if defined(__AVX512BITALG__)
    "avx512bitalg",
#endif
#if defined(__AVX512VPOPCNTDQ__)
    "avx512vpopcntdq",
#endif
    nullptr};

}  // namespace keel
