// Compiled for plain x86-64 (kernels/CMakeLists.txt), and free of library calls that might not be.
#include <unistd.h>

#include "kernels/base/cpu.h"

namespace keel {
namespace {

#if defined(__x86_64__)

bool same(const char* a, const char* b) {
    while (*a && *a == *b) ++a, ++b;
    return *a == *b;
}

// The builtin takes literals only.
bool supported(const char* feature) {
    if (same(feature, "avx2")) return __builtin_cpu_supports("avx2");
    if (same(feature, "fma")) return __builtin_cpu_supports("fma");
    if (same(feature, "avx512f")) return __builtin_cpu_supports("avx512f");
    if (same(feature, "avx512bw")) return __builtin_cpu_supports("avx512bw");
    if (same(feature, "avx512vl")) return __builtin_cpu_supports("avx512vl");
    if (same(feature, "avx512dq")) return __builtin_cpu_supports("avx512dq");
    if (same(feature, "avx512bf16")) return __builtin_cpu_supports("avx512bf16");
    if (same(feature, "bmi2")) return __builtin_cpu_supports("bmi2");
    if (same(feature, "gfni")) return __builtin_cpu_supports("gfni");
    if (same(feature, "avx512ifma")) return __builtin_cpu_supports("avx512ifma");
    if (same(feature, "avx512vbmi")) return __builtin_cpu_supports("avx512vbmi");
    if (same(feature, "avx512vbmi2")) return __builtin_cpu_supports("avx512vbmi2");
    if (same(feature, "avx512vnni")) return __builtin_cpu_supports("avx512vnni");
    if (same(feature, "avx512bitalg")) return __builtin_cpu_supports("avx512bitalg");
    if (same(feature, "avx512vpopcntdq")) return __builtin_cpu_supports("avx512vpopcntdq");
    return false;
}

void say(const char* text) {
    unsigned long n = 0;
    while (text[n]) ++n;
    if (write(STDERR_FILENO, text, n) < 0) return;  // nothing is left to tell it to
}

// 101 is the first priority a program may use: before every static constructor of keel.
__attribute__((constructor(101))) void check() {
    __builtin_cpu_init();
    for (const char* const* feature = compiled_features; *feature; ++feature) {
        if (supported(*feature)) continue;
        say("keel: error: this binary was built for a processor with ");
        say(*feature);
        say(", and this one has none; build it here (cli/quickstart.sh), or anywhere with -DKEEL_ARCH=x86-64-v3 for AVX2\n");
        _exit(1);
    }
}

#endif

}  // namespace

void require_cpu() {}

}  // namespace keel
