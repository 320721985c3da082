#include "kernels/cudasim/matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace sim {
namespace {

float low(std::uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float high(std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

// A matrix is read in one pass over the 32 banks of 4 bytes if its 8 rows of 16 bytes lie in different ones, or are the
// same row.
unsigned conflicts(Part* const (&parts)[warp_lanes], unsigned first_lane) {
    unsigned worst = 0;
    for (unsigned group = 0; group < 8; ++group) {  // of 4 banks
        std::uintptr_t rows[8];
        unsigned distinct = 0;
        for (unsigned row = 0; row < 8; ++row) {
            const auto address =
                reinterpret_cast<std::uintptr_t>(static_cast<const LoadPart&>(*parts[first_lane + row]).row);
            if (address / 16 % 8 != group || std::find(rows, rows + distinct, address) != rows + distinct) continue;
            rows[distinct++] = address;
        }
        worst = std::max(worst, distinct);
    }
    return worst - 1;
}

template <int matrices, bool transposed>
void run_ldmatrix(Part* const (&parts)[warp_lanes], unsigned) {
    Block& block = Block::current();
    std::uint16_t element[matrices][8][8];
    for (unsigned m = 0; m < matrices; ++m)
        for (unsigned row = 0; row < 8; ++row) {
            const auto& part = static_cast<const LoadPart&>(*parts[8 * m + row]);
            const auto lane_text = [&] {
                return "lane " + std::to_string(8 * m + row) + " of the warp of " + block.who();
            };
            if (reinterpret_cast<std::uintptr_t>(part.row) % 16 != 0)
                block.stop(Kind::misaligned,
                           lane_text() + " gives ldmatrix a row that is not 16-byte aligned, at " + where(part.site));
            if (!block.shared().contains(part.row, 16))
                block.stop(Kind::out_of_bounds,
                           lane_text() + " gives ldmatrix a row outside of shared memory, at " + where(part.site));
            std::memcpy(element[m][row], part.row, 16);
        }
    block.counters().ldmatrix += matrices;
    for (unsigned m = 0; m < matrices; ++m) block.counters().ldmatrix_conflicts += conflicts(parts, 8 * m);
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        const unsigned group = lane / 4, pair = lane % 4 * 2;
        std::uint32_t* r = static_cast<const LoadPart&>(*parts[lane]).registers;
        for (unsigned m = 0; m < matrices; ++m) {
            const std::uint32_t first = transposed ? element[m][pair][group] : element[m][group][pair];
            const std::uint32_t second = transposed ? element[m][pair + 1][group] : element[m][group][pair + 1];
            r[m] = first | second << 16;
        }
    }
}

struct MmaPart : Part {
    float* d;
    const std::uint32_t* a;
    std::uint32_t b[2];
};

void run_mma(Part* const (&parts)[warp_lanes], unsigned) {
    float a[16][16], b[16][8], sum[16][8];
    ++Block::current().counters().mma;
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        const auto& part = static_cast<const MmaPart&>(*parts[lane]);
        const unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned i = 0; i < 4; ++i) {
            float* at = &a[group + i % 2 * 8][pair + i / 2 * 8];
            at[0] = low(part.a[i]);
            at[1] = high(part.a[i]);
        }
        for (unsigned i = 0; i < 2; ++i) {
            b[pair + i * 8][group] = low(part.b[i]);
            b[pair + i * 8 + 1][group] = high(part.b[i]);
        }
        for (unsigned i = 0; i < 4; ++i) sum[group + i / 2 * 8][pair + i % 2] = part.d[i];
    }
    for (unsigned m = 0; m < 16; ++m) {
        double row[8];
        for (unsigned n = 0; n < 8; ++n) row[n] = 0;
        for (unsigned k = 0; k < 16; ++k)
            for (unsigned n = 0; n < 8; ++n) row[n] += static_cast<double>(a[m][k]) * static_cast<double>(b[k][n]);
        for (unsigned n = 0; n < 8; ++n) sum[m][n] = static_cast<float>(row[n] + static_cast<double>(sum[m][n]));
    }
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        const auto& part = static_cast<const MmaPart&>(*parts[lane]);
        for (unsigned i = 0; i < 4; ++i) part.d[i] = sum[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}

constexpr Collective mma_collective{"mma.m16n8k16", &run_mma, true};

}  // namespace

const Collective& ldmatrix_collective(int matrices, bool transposed) {
    static constexpr Collective all[] = {{"ldmatrix.x2", &run_ldmatrix<2, false>, true},
                                         {"ldmatrix.x2.trans", &run_ldmatrix<2, true>, true},
                                         {"ldmatrix.x4", &run_ldmatrix<4, false>, true},
                                         {"ldmatrix.x4.trans", &run_ldmatrix<4, true>, true}};
    return all[matrices / 4 * 2 + (transposed ? 1 : 0)];
}

void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                       const Site& site) {
    MmaPart part{{&mma_collective, all_lanes, site}, d, a, {b0, b1}};
    Block::current().join(part);
}

}  // namespace sim
