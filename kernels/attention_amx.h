// kernels/attention_amx.h: what forward and backward in bf16 on the processor's tile registers share (kernels/amx.h).
//
// The algorithm of attention_forward.h and attention_backward.h by other blocks: more keys and rows a task, a dq that is one
// chain, a maximum that is followed only when it has grown much. Products are 32 x 32 blocks of float sums, and only what is multiplied
// again (P and ds) is rounded to bf16. Scores still stand [key][row]: pairs of keys of one row are then what a tile of
// B wants, and rows of one key what a tile of A wants, so that nothing that was computed is ever transposed. Groups of
// 32 keys lie at fixed places; keys that nobody sees are zeros, never read.
#pragma once

#include "kernels/amx.h"

#if KEEL_AMX
#include "kernels/attention_tile.h"
#include "kernels/matmul_amx.h"

namespace keel::attention {

using gemm::step_elements;
using gemm::store_row_of_32;
using simd::Uint;
constexpr std::int64_t key_group = 32, group_elements = gemm::step_elements;  // 32 keys by 32 rows, as two tiles
static_assert(tile_rows == 32 && lanes == 16);

// Carves typed pieces out of a workspace, 64-byte aligned.
class Carver {
public:
    explicit Carver(std::byte* at) : at_(at) {}
    template <class E>
    E* take(std::int64_t count) {
        E* const piece = reinterpret_cast<E*>(at_);
        at_ += round_up(count * static_cast<std::int64_t>(sizeof(E)), 64);
        return piece;
    }

private:
    std::byte* at_;
};

// out[i] = row i, `count` of them, zero from `width` to `deep` elements; rows beyond `have` are zero.
template <class Row>
void gather(std::int64_t count, std::int64_t have_begin, std::int64_t have_end, std::int64_t width, std::int64_t deep,
            Row row, bf16* out) {
    for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t d = 0; d < deep; d += 32)
            _mm512_storeu_si512(out + i * deep + d, i >= have_begin && i < have_end
                                                        ? gemm::pairs_pack::load(row(i) + d, width - d)
                                                        : _mm512_setzero_si512());
}

inline gemm::PairRows rows_at(const bf16* rows, std::int64_t deep) {
    return {reinterpret_cast<const char*>(rows), reinterpret_cast<const char*>(rows + 16 * deep), deep * 2, 64};
}
inline gemm::PairRows tiles_at(const bf16* tiles) {
    return {reinterpret_cast<const char*>(tiles), reinterpret_cast<const char*>(tiles + gemm::tile_elements), 64,
            step_elements * 2};
}
// out [32][32] = A B over `steps` times 32, or += . Of rows, or of columns, only the first 16 where no more are wanted.
template <bool two_rows = true, bool two_columns = true>
inline void block_product(const gemm::PairRows& a, const bf16* b, std::int64_t steps, bool add, float* out) {
    constexpr gemm::Reads again = gemm::Reads::again;
    gemm::amx_sums<two_rows, two_columns, again, again>(a, b, steps, {add ? out : nullptr, 32, out, 32},
                                                        [](std::int64_t) {});
}
// Rows, or columns, are as many elements of a head as are left from d on.
inline void product_of_rows(std::int64_t left, const gemm::PairRows& a, const bf16* b, std::int64_t steps, bool add,
                            float* out) {
    (left > 16 ? block_product<true, true> : block_product<false, true>)(a, b, steps, add, out);
}
inline void product_of_columns(std::int64_t left, const gemm::PairRows& a, const bf16* b, std::int64_t steps, bool add,
                               float* out) {
    (left > 16 ? block_product<true, true> : block_product<true, false>)(a, b, steps, add, out);
}

}  // namespace keel::attention
#endif
