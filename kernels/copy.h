// kernels/copy.h: rows copied and cleared, in the memory of whatever the stream is of.
//
// Layout  rows may lie apart, as the columns of a packed matrix do; a flat View is one row.
// Order   asynchronous on `stream`.
// Errors  throws Error before anything is moved if shapes disagree.
// Alias   none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

// At least one row, of at least one byte.
struct CopyRows {
    std::byte* to;          // [rows] of row_bytes, to_stride bytes apart  written
    const std::byte* from;  // the same, from_stride apart                 read
    std::int64_t to_stride, from_stride, row_bytes, rows;
};
struct ClearRows {
    std::byte* x;  // [rows] of row_bytes, stride bytes apart  written: zero
    std::int64_t stride, row_bytes, rows;
};
void copy_rows(Stream& stream, const CopyRows& args);
void clear_rows(Stream& stream, const ClearRows& args);

// y = x, of one shape.
template <class T>
void copy(Stream& stream, View<T> y, View<const T> x) {
    if (y.size() != x.size() || y.dim(0) != x.dim(0)) fail("copy: y is ", y.shape(), ", but x is ", x.shape());
    if (x.size() == 0) return;
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    const bool flat = x.contiguous() && y.contiguous();
    copy_rows(stream, {.to = reinterpret_cast<std::byte*>(y.data()),
                       .from = reinterpret_cast<const std::byte*>(x.data()),
                       .to_stride = y.stride() * size,
                       .from_stride = x.stride() * size,
                       .row_bytes = flat ? x.bytes() : x.bytes() / x.dim(0),
                       .rows = flat ? 1 : x.dim(0)});
}
// x = 0.
template <class T>
void clear(Stream& stream, View<T> x) {
    if (x.size() == 0) return;
    const bool flat = x.contiguous();
    clear_rows(stream, {.x = reinterpret_cast<std::byte*>(x.data()),
                        .stride = x.stride() * static_cast<std::int64_t>(sizeof(T)),
                        .row_bytes = flat ? x.bytes() : x.bytes() / x.dim(0),
                        .rows = flat ? 1 : x.dim(0)});
}

}  // namespace keel
