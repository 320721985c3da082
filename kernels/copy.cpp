#include "kernels/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cuda_ops.h"
#include "kernels/simd.h"

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

// What is larger than caches keep until it is read: past them, 21 GB/s a thread instead of 10.
constexpr std::int64_t past_bytes = 64 << 20;

void clear_past(std::byte* x, std::size_t bytes) {
    const std::size_t head = std::min(bytes, (64 - reinterpret_cast<std::uintptr_t>(x) % 64) % 64);
    const std::size_t end = head + (bytes - head) / 64 * 64;
    std::memset(x, 0, head);
    for (std::size_t at = head; at < end; at += simd::width * sizeof(float))
        simd::store_past(reinterpret_cast<float*>(x + at), simd::Float{});
    simd::passed();
    std::memset(x + end, 0, bytes - end);
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
    const bool past = a.rows * a.row_bytes >= past_bytes;
    for_tiles(stream, a.row_bytes, a.rows, [&](std::int64_t row, std::int64_t rows, std::int64_t at, std::size_t bytes) {
        for (std::int64_t r = row; r < row + rows; ++r) {
            std::byte* const x = a.x + r * a.stride + at;
            if (past) clear_past(x, bytes);
            else std::memset(x, 0, bytes);
        }
    });
}

}  // namespace keel
