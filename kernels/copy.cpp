#include "kernels/copy.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda_ops.h"

namespace keel {
namespace {

constexpr std::int64_t tile_bytes = 1 << 18;

// body(first row, rows, first byte of each, bytes) for tiles of about tile_bytes: several rows, or a part of one.
template <class Body>
void for_tiles(Stream& stream, std::int64_t row_bytes, std::int64_t rows, Body body) {
    const std::int64_t part = std::min(row_bytes, tile_bytes), parts = ceil_div(row_bytes, part),
                       group = std::max<std::int64_t>(1, tile_bytes / part), groups = ceil_div(rows, group);
    stream.parallel(parts * groups, [&](std::int64_t tile, int) {
        const std::int64_t row = tile / parts * group, at = tile % parts * part;
        body(row, std::min(group, rows - row), at, static_cast<std::size_t>(std::min(part, row_bytes - at)));
    });
}

}  // namespace

void copy_rows(Stream& stream, const CopyRows& a) {
    if (run_on_device(stream, a)) return;
    for_tiles(stream, a.row_bytes, a.rows, [&](std::int64_t row, std::int64_t rows, std::int64_t at, std::size_t bytes) {
        for (std::int64_t r = row; r < row + rows; ++r)
            std::memcpy(a.to + r * a.to_stride + at, a.from + r * a.from_stride + at, bytes);
    });
}

void clear_rows(Stream& stream, const ClearRows& a) {
    if (run_on_device(stream, a)) return;
    for_tiles(stream, a.row_bytes, a.rows, [&](std::int64_t row, std::int64_t rows, std::int64_t at, std::size_t bytes) {
        for (std::int64_t r = row; r < row + rows; ++r) std::memset(a.x + r * a.stride + at, 0, bytes);
    });
}

}  // namespace keel
