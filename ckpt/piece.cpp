#include "ckpt/piece.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "kernels/base/error.h"

namespace keel {
namespace {

std::string span_text(const char* what, std::int64_t first, std::int64_t count) {
    return concat(what, " ", first, "…", first + count - 1);
}

// The first place, row by row, that no rectangle covers. Only asked for once something is known to be missing.
Rect first_hole(const Rect& all, std::span<const Rect> rects) {
    std::set<std::int64_t> borders{all.row, all.rows};
    for (const Rect& r : rects) borders.insert({r.row, r.row + r.rows});
    for (auto at = borders.begin(); std::next(at) != borders.end(); ++at) {
        std::map<std::int64_t, std::int64_t> covered;  // first column → past the last
        for (const Rect& r : rects)
            if (!r.empty() && r.row <= *at && *at < r.row + r.rows) covered.emplace(r.col, r.col + r.cols);
        covered.emplace(all.cols, all.cols);
        std::int64_t col = 0;
        for (const auto& [begin, end] : covered) {
            if (begin > col) return {*at, *std::next(at) - *at, col, begin - col};
            col = end;
        }
    }
    return {};
}

}  // namespace

Rect extent(std::span<const std::int64_t> shape) {
    if (shape.size() <= 1) return {0, 1, 0, element_count(shape)};
    return {0, shape[0], 0, element_count(shape.subspan(1))};
}

Rect intersect(const Rect& a, const Rect& b) {
    const std::int64_t row = std::max(a.row, b.row), col = std::max(a.col, b.col);
    const std::int64_t row_end = std::min(a.row + a.rows, b.row + b.rows),
                       col_end = std::min(a.col + a.cols, b.col + b.cols);
    if (row_end <= row || col_end <= col) return {row, 0, col, 0};
    return {row, row_end - row, col, col_end - col};
}

std::vector<Rect> flat_range(const Rect& slice, std::int64_t first, std::int64_t count) {
    if (first < 0 || count < 0 || first + count > slice.elements())
        fail("elements ", first, " to ", first + count, " of a slice of ", slice.elements());
    std::vector<Rect> rects;
    for (std::int64_t done = 0; done < count; done += rects.back().elements()) {
        const std::int64_t row = (first + done) / slice.cols, col = (first + done) % slice.cols;
        const std::int64_t rows = col == 0 ? std::max<std::int64_t>(1, (count - done) / slice.cols) : 1;
        const std::int64_t cols = rows > 1 ? slice.cols : std::min(slice.cols - col, count - done);
        rects.push_back({slice.row + row, rows, slice.col + col, cols});
    }
    return rects;
}

TensorPiece whole(const NamedTensor& t) {
    const Rect all = extent(t.shape);
    return {t.name, t.dtype, t.shape, 0, all.rows, 0, all.cols, t.data, all.cols};
}

std::vector<TensorPiece> whole(std::span<const NamedTensor> tensors) {
    std::vector<TensorPiece> pieces;
    for (const NamedTensor& t : tensors) pieces.push_back(whole(t));
    return pieces;
}

void check_piece(const TensorPiece& p) {
    const Rect all = extent(p.shape);
    if (p.row < 0 || p.rows < 0 || p.col < 0 || p.cols < 0 || p.row + p.rows > all.rows || p.col + p.cols > all.cols)
        fail("a piece of \"", p.name, "\" ", shape_text(p.shape), " is ", p.rows, " rows from ", p.row, " and ", p.cols,
             " columns from ", p.col, "; it must lie inside ", all.rows, " rows of ", all.cols);
    if (p.rows > 1 && p.row_stride < p.cols)
        fail("a piece of \"", p.name, "\" has ", p.cols, " columns, but its rows lie ", p.row_stride,
             " elements apart");
}

std::string rect_text(std::span<const std::int64_t> shape, const Rect& r) {
    if (shape.size() <= 1) return span_text("elements", r.col, r.cols);
    return span_text("rows", r.row, r.rows) + ", " + span_text("columns", r.col, r.cols);
}

std::string tiling_error(std::span<const std::int64_t> shape, std::span<const Rect> rects,
                         const std::function<std::string(std::size_t)>& label) {
    // Rectangles enter from the top and leave at their last row; those in between lie side by side, by column.
    std::vector<std::size_t> order(rects.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rects[a].row < rects[b].row; });
    std::map<std::int64_t, std::size_t> active;
    std::multimap<std::int64_t, std::int64_t> leaving;  // past the last row → column in `active`
    std::int64_t covered = 0;
    for (const std::size_t i : order) {
        const Rect& r = rects[i];
        if (r.empty()) continue;
        while (!leaving.empty() && leaving.begin()->first <= r.row) {
            active.erase(leaving.begin()->second);
            leaving.erase(leaving.begin());
        }
        const auto next = active.lower_bound(r.col);
        std::size_t other = i;
        if (next != active.end() && next->first < r.col + r.cols) other = next->second;
        if (next != active.begin()) {
            const std::size_t before = std::prev(next)->second;
            if (rects[before].col + rects[before].cols > r.col) other = before;
        }
        if (other != i)
            return concat(rect_text(shape, intersect(r, rects[other])), " are in ", label(std::min(i, other)),
                          " and in ", label(std::max(i, other)));
        active.emplace(r.col, i);
        leaving.emplace(r.row + r.rows, r.col);
        covered += r.elements();
    }
    if (covered == element_count(shape)) return {};
    return rect_text(shape, first_hole(extent(shape), rects)) + " are in no file";
}

}  // namespace keel
