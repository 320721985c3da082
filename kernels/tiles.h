// kernels/tiles.h: how row-wise ops cut a tensor into the tiles of Stream::parallel. By shape only, never by threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/stream.h"

namespace keel {

// Elements in a tile. Large enough that taking a tile (an atomic addition) is free, small enough that a tile's rows
// stay in the second-level cache between the passes an op makes over them.
constexpr std::int64_t tile_elements = 1 << 15;

// body(begin, end) for ranges that cover the rows [0, rows) of row_elements each.
template <class Body> void parallel_rows(Stream& stream, std::int64_t rows, std::int64_t row_elements, Body&& body) {
    const std::int64_t step = std::max<std::int64_t>(1, tile_elements / std::max<std::int64_t>(1, row_elements));
    stream.parallel(ceil_div(rows, step), [&](std::int64_t tile, int) {
        body(tile * step, std::min(rows, (tile + 1) * step));
    });
}

// body(begin, count) for ranges that cover n elements.
template <class Body> void parallel_flat(Stream& stream, std::int64_t n, Body&& body) {
    stream.parallel(ceil_div(n, tile_elements), [&](std::int64_t tile, int) {
        const std::int64_t begin = tile * tile_elements;
        body(begin, std::min(tile_elements, n - begin));
    });
}

// Sums over tokens are made in slices: at most `max_slices` runs of at least `min_slice_tokens` tokens, each summed on
// its own, then added, in an order that is always the same. The cut depends on the number of tokens alone: enough slices to fill any GPU.
struct TokenSlices {
    static constexpr std::int64_t max_slices = 256, min_slice_tokens = 32;

    explicit TokenSlices(std::int64_t tokens)
        : tokens_(tokens), step_(std::max(min_slice_tokens, ceil_div(tokens, max_slices))) {}
    std::int64_t count() const { return ceil_div(tokens_, step_); }
    std::int64_t begin(std::int64_t slice) const { return slice * step_; }
    std::int64_t end(std::int64_t slice) const { return std::min(tokens_, (slice + 1) * step_); }

private:
    std::int64_t tokens_, step_;
};

}  // namespace keel
