// kernels/matmul_pairs.h: one tile of a bf16 product on one thread, by tile registers or dot products of pairs.
//
// C is worked in blocks of 32 x 32, by a unit (matmul_amx.h, matmul_dot.h). A is read where it lies if its rows are
// contiguous, whole and not a power of two apart; else it is copied into tiles. B becomes tiles of pairs of k.
// Blocks of k go on with the sums of those before, so that an element of C is one chain over k.
//
// A tile of C is as wide as the second cache holds of B; a sliver of A stays in the nearest one while all of that B passes
// by it. Past the second cache a core reads one line in the time of half a tile instruction (measured: 30 GB/s against 3.3
// TFLOP/s): rows of A are asked for a sliver before, and results are rounded beside the next block's steps (BesideBlock).
#pragma once

#include "kernels/bf16_unit.h"

#if KEEL_BF16_PAIRS
#include "kernels/matmul.h"
#include "kernels/matmul_pairs_pack.h"
#include "kernels/matmul_plan.h"

namespace keel::gemm {

constexpr Limits pairs_limits{.k_block = 2048,
                            .k_unit = 32,
                            .row_unit = 32,
                            .panel = 32,
                            .tile_rows = 128,
                            .tile_columns = 1024,
                            .tile_b = 1 << 19,
                            .shared_rows = 256,
                            .own_rows = 384,
                            .own_columns = 512,
                            .packs_a = false};

// Workspace of one thread, in bytes: where B is packed before, the sums of two slivers; where a task packs it, the task's A, a
// panel of B, and all its sums.
constexpr std::int64_t pairs_block_bytes = 32 * 32 * 4;
constexpr std::int64_t pairs_panel_bytes = pairs_limits.panel * pairs_limits.k_block * 2;
constexpr std::int64_t pairs_a_bytes = pairs_limits.tile_rows * pairs_limits.k_block * 2;
constexpr std::int64_t pairs_own_k = 512;  // of a block, where a task packs more than tile_rows: a panel of B stays in the nearest cache
static_assert(pairs_limits.own_rows * pairs_own_k * 2 <= pairs_a_bytes);
static_assert(pairs_a_bytes + pairs_panel_bytes + pairs_limits.own_rows * pairs_limits.own_columns * 4 <= matmul_workspace_bytes);
static_assert(2 * pairs_limits.tile_columns / 32 * pairs_block_bytes <= matmul_workspace_bytes);
static_assert(pairs_a_bytes + pairs_panel_bytes + pairs_limits.tile_rows * pairs_limits.tile_columns * 4 <= matmul_workspace_bytes);

// At most 32 x 32 of C, and its sums beside it: [32][32]. From them C is written when they are complete.
template <class C>
struct BlockResult {
    C* c = nullptr;
    std::int64_t c_stride = 0, rows = 0, columns = 0;
    float* sums = nullptr;
    const bf16* bias = nullptr;

    bool whole() const { return rows == 32 && columns == 32; }
    // Sums that go on from what is in C.
    BlockSums after_c() const {
        if constexpr (std::is_same_v<C, float>)
            if (whole()) return {c, c_stride, sums, 32};
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t i = 0; i < columns; i += 16)
                simd::store(sums + r * 32 + i, simd::load_part(c + r * c_stride + i, std::min<std::int64_t>(16, columns - i)));
        return {sums, 32, sums, 32};
    }
    void finish() const {
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t i = 0; i < columns; i += 16) {
                const std::int64_t here = std::min<std::int64_t>(16, columns - i);
                simd::Float x = simd::load(sums + r * 32 + i);
                if (bias) x += simd::load_part(bias + i, here);
                C* const to = c + r * c_stride + i;
                if (here == 16)
                    simd::store(to, x);
                else
                    simd::store_part(to, x, here);
            }
    }
};

// What is done beside the steps of a block: the block before goes into C, and lines of A that the next sliver reads come
// nearer.
template <class C>
struct BesideBlock {
    std::int64_t rows_a_step;  // of the block before, so that all are done in the end
    BlockResult<C> before;       // without c: nothing to do
    const char* line;          // at every step one line from each of `lines` rows, `row` bytes apart
    std::int64_t row, lines, line_step;

    void operator()(std::int64_t i) {
        for (std::int64_t r = 0; r < lines; ++r) __builtin_prefetch(line + r * row, 0, 2);
        line += line_step;
        if (before.c)
            for (std::int64_t r = i * rows_a_step; r < std::min<std::int64_t>(32, (i + 1) * rows_a_step); ++r)
                store_row_of_32(before.c + r * before.c_stride, simd::load(before.sums + r * 32),
                                simd::load(before.sums + r * 32 + 16));
    }
};

// Whether tiles of A can be loaded where it lies. Rows a power of two apart meet in a few sets of a cache: of the nearest,
// which matters where they would stay there, and of the second too where a row is read in many blocks.
template <class C>
bool pairs_read_a(const Matmul<bf16, C>& p) {
    const bool spread = p.a.row_stride * 2 % 2048 != 0 || (p.k > near_steps * 32 && p.k <= 2 * pairs_limits.k_block);
    return p.a.col_stride == 1 && spread && p.m % 32 == 0 && p.k % 32 == 0;
}

// A product whose B is packed already, and A too if it is not read where it lies. Of a sliver all k before the next one: its
// sums stay near, and so does all of B.
template <class Unit, class C>
void pairs_on_packed_b(const Matmul<bf16, C>& p, const Area& area, const Packed<bf16>& b, const Packed<bf16>& a, std::byte* workspace) {
    [[maybe_unused]] const typename Unit::Scope scope;
    float* const sums = reinterpret_cast<float*>(workspace);
    const Blocks blocks(p.k, pairs_limits);
    const std::int64_t panels = ceil_div(area.columns, 32), share = ceil_div(32, panels), end = area.block + area.blocks;
    const auto rows_at = [&](std::int64_t row, std::int64_t k) -> PairRows {
        const bf16* const upper = a.data ? a.data + (row - a.first) * a.k + (k - a.k0) * 32 : p.a.data + row * p.a.row_stride + k;
        const bf16* const lower = upper + (a.data ? tile_elements : 16 * p.a.row_stride);
        return {reinterpret_cast<const char*>(upper), reinterpret_cast<const char*>(lower), a.data ? 64 : p.a.row_stride * 2,
                a.data ? step_elements * 2 : 64};
    };
    BlockResult<C> before;
    for (std::int64_t s = 0; s < ceil_div(area.rows, 32); ++s) {
        const std::int64_t row = area.row + 32 * s, height = std::min<std::int64_t>(32, area.rows - 32 * s);
        for (std::int64_t at = area.block; at < end; ++at) {
            const std::int64_t k0 = blocks.begin(at), steps = ceil_div(blocks.size(at), 32);
            const PairRows rows = rows_at(row, k0), next = rows_at(32 * (s + 1) < area.rows ? row + 32 : area.next_row, k0);
            for (std::int64_t i = 0; i < panels; ++i) {
                const std::int64_t column = area.column + 32 * i, width = std::min<std::int64_t>(32, area.columns - 32 * i);
                // Never where the sums lie that go into C meanwhile.
                float* const here = sums + (area.blocks == 1 ? (s * panels + i) % 2 : s % 2 * panels + i) * 1024;
                const BlockResult<C> result{p.c + row * p.c_stride + column, p.c_stride, height, width, here,
                                          p.bias && at + 1 == blocks.count() ? p.bias + column : nullptr};
                const BlockSums chain = at > area.block           ? BlockSums{here, 32, here, 32}
                                      : at > 0 || p.accumulate ? result.after_c()
                                                               : BlockSums{nullptr, 0, here, 32};
                // A sliver of `steps` times 32 lines is asked for in equal shares.
                BesideBlock<C> beside{.rows_a_step = ceil_div(32, steps),
                                    .before = before,
                                    .line = next.upper + share * i * (a.data ? steps * 64 : next.stride),
                                    .row = next.stride,
                                    .lines = std::clamp<std::int64_t>(32 - share * i, 0, share),
                                    .line_step = a.data ? share * 64 : 64};
                Unit::block(rows, b.data + (column - b.first) * b.k + (k0 - b.k0) * 32, steps, height, width, chain, beside);
                before = {};
                if (at + 1 < end) continue;
                if (result.whole() && !result.bias)
                    before = result;
                else
                    result.finish();
            }
        }
    }
    if (before.c) before.finish();
}

// Whether tasks pack both operands, each for itself. A must be copied anyway, and if one side of C is a tile or two, the
// other operand is copied once or twice. Packed for all, half of it comes out of another processor's cache, behind two barriers: the weight
// gradients of case a took two threads 18.5 ms a step, now 14.5.
template <class C>
bool pairs_pack_both(const Matmul<bf16, C>& p) {
    return p.a.col_stride != 1 && std::min(p.m, p.n) >= pairs_limits.tile_rows && std::min(p.m, p.n) <= pairs_limits.own_columns;
}

// A product whose tasks pack what they read: A, a block of k at a time, and each panel of B where it is used.
template <class Unit, class C>
void pairs_on_own_b(const Matmul<bf16, C>& p, const Area& area, std::byte* workspace) {
    [[maybe_unused]] const typename Unit::Scope scope;
    bf16* const a = reinterpret_cast<bf16*>(workspace);
    bf16* const b = reinterpret_cast<bf16*>(workspace + pairs_a_bytes);
    float* const sums = reinterpret_cast<float*>(workspace + pairs_a_bytes + pairs_panel_bytes);
    Limits limits = pairs_limits;
    if (area.rows > limits.tile_rows) limits.k_block = pairs_own_k;
    const Blocks blocks(p.k, limits);
    const std::int64_t slivers = ceil_div(area.rows, 32), panels = ceil_div(area.columns, 32);
    for (std::int64_t at = 0; at < blocks.count(); ++at) {
        const std::int64_t k0 = blocks.begin(at), k = blocks.size(at), steps = ceil_div(k, 32);
        const bool last = at + 1 == blocks.count();
        pairs_pack::slivers_of_a(p.a, area.row, area.rows, k0, k, a, steps * step_elements);
        for (std::int64_t i = 0; i < panels; ++i) {
            const std::int64_t column = area.column + 32 * i, width = std::min<std::int64_t>(32, area.columns - 32 * i);
            pairs_pack::panels_of_b(p.b, k0, k, column, width, b, 0);
            for (std::int64_t s = 0; s < slivers; ++s) {
                const bf16* const copy = a + s * steps * step_elements;
                float* const here = sums + (blocks.count() == 1 ? 0 : s * panels + i) * 1024;
                const BlockResult<C> result{p.c + (area.row + 32 * s) * p.c_stride + column,
                                          p.c_stride,
                                          std::min<std::int64_t>(32, area.rows - 32 * s),
                                          width,
                                          here,
                                          p.bias && last ? p.bias + column : nullptr};
                BlockSums chain = at > 0 ? BlockSums{here, 32, here, 32}
                                : p.accumulate ? result.after_c()
                                               : BlockSums{nullptr, 0, here, 32};
                bool in_c = false;
                if constexpr (std::is_same_v<C, float>)
                    if (result.whole() && !p.bias) {
                        in_c = true;
                        chain = {at > 0 || p.accumulate ? result.c : nullptr, p.c_stride, result.c, p.c_stride};
                    }
                Unit::block({reinterpret_cast<const char*>(copy), reinterpret_cast<const char*>(copy + tile_elements), 64,
                           step_elements * 2},
                          b, steps, result.rows, result.columns, chain, [](std::int64_t) {});
                if (last && !in_c) result.finish();
            }
        }
    }
}

// A unit's kernel, as the driver in matmul.cpp sees it.
template <class Unit>
struct PairsPath {
    using Element = bf16;
    static constexpr Limits limits = pairs_limits;
    // Whole rows of memory, or the better part of them.
    static Piece piece_of_b(const MatmulOperand<bf16>& b) {
        return b.col_stride == 1 ? Piece{1024, 64} : Piece{64, 2048};
    }
    static Piece piece_of_a(const MatmulOperand<bf16>& a) {
        return a.row_stride == 1 ? Piece{512, 256} : Piece{64, 2048};
    }
    static void pack_b(const MatmulOperand<bf16>& b, std::int64_t k0, std::int64_t k, std::int64_t column,
                       std::int64_t columns, bf16* out, std::int64_t panel_stride) {
        pairs_pack::panels_of_b(b, k0, k, column, columns, out, panel_stride);
    }
    static void pack_a(const MatmulOperand<bf16>&, std::int64_t, std::int64_t, std::int64_t, bf16*) {
    }  // limits.packs_a is false
    template <class C>
    static bool packs_both(const Matmul<bf16, C>& p) {
        return pairs_pack_both(p);
    }
    template <class C>
    static bool reads_a(const Matmul<bf16, C>& p) {
        return pairs_read_a(p);
    }
    static void pack_rows_of_a(const MatmulOperand<bf16>& a, std::int64_t row, std::int64_t rows, std::int64_t k0,
                               std::int64_t k, bf16* out, std::int64_t sliver_stride) {
        pairs_pack::slivers_of_a(a, row, rows, k0, k, out, sliver_stride);
    }
    template <class C>
    static void on_packed_b(const Matmul<bf16, C>& p, const Area& area, const Packed<bf16>& b, const Packed<bf16>& a,
                            std::byte* workspace) {
        pairs_on_packed_b<Unit>(p, area, b, a, workspace);
    }
    template <class C>
    static void on_own_b(const Matmul<bf16, C>& p, const Area& area, const Packed<bf16>*, std::byte* workspace) {
        pairs_on_own_b<Unit>(p, area, workspace);
    }
};

}  // namespace keel::gemm
#endif
