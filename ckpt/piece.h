// ckpt/piece.h: rectangles of global tensors: what one rank owns of a model, however it is cut.
//
// A tensor is seen as rows and columns: [n] is one row of n, [a, b, …] is a rows of b·…. A column or row slice of
// tensor parallelism is one rectangle; a flat range of a row-major slice (a ZeRO shard) is at most three.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/tensor.h"
#include "kernels/base/dtype.h"

namespace keel {

struct Rect {
    std::int64_t row, rows, col, cols;

    std::int64_t elements() const { return rows * cols; }
    bool empty() const { return rows == 0 || cols == 0; }
    bool operator==(const Rect&) const = default;
};
Rect extent(std::span<const std::int64_t> shape);  // all of it
Rect intersect(const Rect& a, const Rect& b);      // empty if they share nothing
// Elements [first, first + count) of `slice` read row by row, in order: a started row, whole rows, a row begun.
std::vector<Rect> flat_range(const Rect& slice, std::int64_t first, std::int64_t count);

struct TensorPiece {
    std::string name;                   // of the global tensor
    Dtype dtype;                        // in memory
    std::vector<std::int64_t> shape;    // of the global tensor
    std::int64_t row, rows, col, cols;  // the rectangle
    std::byte* data;                    // its first element; somebody else owns the memory
    std::int64_t row_stride;            // elements from one of its rows to the next

    Rect rect() const { return {row, rows, col, cols}; }
    std::int64_t bytes() const { return rows * cols * size_bytes(dtype); }
};
TensorPiece whole(const NamedTensor& tensor);
std::vector<TensorPiece> whole(std::span<const NamedTensor> tensors);

// Refuses a piece that does not lie inside its tensor.
void check_piece(const TensorPiece& piece);

// "rows 3…4, columns 0…15" or, of a tensor of one dim, "elements 0…15".
std::string rect_text(std::span<const std::int64_t> shape, const Rect& rect);

// "" if `rects` cover a tensor of `shape` exactly once, else the first overlap or hole. `label(i)` says whose rects[i]
// is. n log n in the number of rectangles.
std::string tiling_error(std::span<const std::int64_t> shape, std::span<const Rect> rects,
                         const std::function<std::string(std::size_t)>& label);

}  // namespace keel
