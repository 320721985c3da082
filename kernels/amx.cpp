#include "kernels/amx.h"

#if KEEL_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace keel::amx {
namespace {

// Linux hands out the 8 KB of tile state only to processes that ask (arch_prctl(2); 5.16 and later).
bool ask() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned bf16_tiles = 1u << 22, tiles = 1u << 24;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & bf16_tiles) || !(d & tiles)) return false;
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

bool available() {
    static const bool granted = ask();
    return granted;
}

}  // namespace keel::amx
#endif
