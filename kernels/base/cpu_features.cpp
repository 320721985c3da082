#include "kernels/base/cpu.h"

namespace keel {

// Constants only: this file is compiled for the new processor, and nothing of it may run before the check.
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
    nullptr};

}  // namespace keel
