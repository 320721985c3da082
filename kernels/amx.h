// kernels/amx.h: the processor's tile registers for bf16 products, where it has them and the system grants them.
//
// Eight tiles of 16 rows by 64 bytes, all of full size; what is smaller is padded with zeros. C += A B on tiles:
// C [16][16] float, A [16][32] bf16, B [16 pairs of k][16 columns][2] bf16. Every element is one chain over k, so where
// it stands in a tile does not show in its bits. Built where KEEL_ARCH has them (sapphirerapids, or native on such a processor:
// __AMX_TILE__, __AMX_BF16__); asked for at run time. A thread configures before its first tile instruction (`Tiles`) and
// releases afterwards, which keeps its context switches small.
#pragma once

#if defined(__x86_64__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__) && defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define KEEL_AMX 1
#include <immintrin.h>

#include <cstdint>

namespace keel::amx {

// True if this process may use tiles. Asks once.
bool available();

struct alignas(64) Configuration {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Configuration) == 64);

// Tile registers of this thread, while it lives.
class Tiles {
public:
    Tiles() {
        static constexpr Configuration configuration;
        _tile_loadconfig(&configuration);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

}  // namespace keel::amx
#else
#define KEEL_AMX 0
#endif
