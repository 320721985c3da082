// Rectangles of tensors: cutting, covering, and saying what is wrong.
#include "ckpt/piece.h"

#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

std::string error_of(const std::vector<std::int64_t>& shape, const std::vector<Rect>& rects) {
    return tiling_error(shape, rects, [](std::size_t i) { return std::to_string(i); });
}

TEST(Piece, AShapeIsRowsOfColumns) {
    EXPECT_EQ(extent(std::vector<std::int64_t>{7}), (Rect{0, 1, 0, 7}));
    EXPECT_EQ(extent(std::vector<std::int64_t>{3, 5}), (Rect{0, 3, 0, 5}));
    EXPECT_EQ(extent(std::vector<std::int64_t>{3, 5, 2}), (Rect{0, 3, 0, 10}));
    EXPECT_EQ(extent(std::vector<std::int64_t>{}), (Rect{0, 1, 0, 1}));
}

TEST(Piece, AFlatRangeIsAtMostThreeRectanglesInOrder) {
    const Rect slice{10, 4, 100, 5};
    for (std::int64_t first = 0; first <= 20; ++first)
        for (std::int64_t count = 0; first + count <= 20; ++count) {
            const auto rects = flat_range(slice, first, count);
            EXPECT_LE(rects.size(), 3u);
            std::vector<std::int64_t> seen;
            for (const Rect& r : rects)
                for (std::int64_t row = r.row; row < r.row + r.rows; ++row)
                    for (std::int64_t col = r.col; col < r.col + r.cols; ++col)
                        seen.push_back((row - 10) * 5 + col - 100);
            ASSERT_EQ(static_cast<std::int64_t>(seen.size()), count);
            for (std::int64_t i = 0; i < count; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], first + i);
        }
    expect_error([&] { flat_range(slice, 15, 6); }, {"elements 15 to 21 of a slice of 20"});
}

TEST(Piece, HolesAndOverlapsAreFoundAndPlaced) {
    EXPECT_EQ(error_of({4, 6}, {{0, 4, 0, 6}}), "");
    EXPECT_EQ(error_of({4, 6}, {{0, 4, 0, 3}, {0, 2, 3, 3}, {2, 2, 3, 3}}), "");
    EXPECT_EQ(error_of({4, 6}, {{2, 2, 3, 3}, {0, 2, 3, 3}, {0, 4, 0, 3}, {1, 0, 2, 0}}), "");  // any order; empty ones
    EXPECT_EQ(error_of({4, 6}, {{0, 4, 0, 3}, {2, 2, 3, 3}}), "rows 0…1, columns 3…5 are in no file");
    EXPECT_EQ(error_of({4, 6}, {{0, 3, 0, 6}}), "rows 3…3, columns 0…5 are in no file");
    EXPECT_EQ(error_of({4, 6}, {{0, 4, 0, 4}, {3, 1, 3, 3}, {0, 3, 4, 2}}), "rows 3…3, columns 3…3 are in 0 and in 1");
    EXPECT_EQ(error_of({4, 6}, {{0, 4, 2, 4}, {1, 2, 0, 3}}), "rows 1…2, columns 2…2 are in 0 and in 1");
    EXPECT_EQ(error_of({9}, {{0, 1, 0, 4}, {0, 1, 5, 4}}), "elements 4…4 are in no file");
    EXPECT_EQ(error_of({9}, {{0, 1, 0, 5}, {0, 1, 4, 5}}), "elements 4…4 are in 0 and in 1");
    EXPECT_EQ(error_of({2}, {}), "elements 0…1 are in no file");
    EXPECT_EQ(error_of({0, 3}, {}), "");
}

// Every way to drop or double one of the pieces of a random cut is found.
TEST(Piece, NoSubsetOfATilingIsOne) {
    std::vector<Rect> cut;
    for (const Rect& slice : {Rect{0, 12, 0, 4}, Rect{0, 5, 4, 5}, Rect{5, 7, 4, 5}})
        for (std::int64_t at = 0; at < slice.elements(); at += 7)
            for (const Rect& r : flat_range(slice, at, std::min<std::int64_t>(7, slice.elements() - at)))
                cut.push_back(r);
    EXPECT_EQ(error_of({12, 9}, cut), "");
    for (std::size_t i = 0; i < cut.size(); ++i) {
        auto fewer = cut, twice = cut;
        fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
        twice.push_back(cut[i]);
        EXPECT_NE(error_of({12, 9}, fewer).find("in no file"), std::string::npos);
        EXPECT_NE(error_of({12, 9}, twice).find(" and in "), std::string::npos);
    }
}

TEST(Piece, PiecesOutsideTheirTensorAreRefused) {
    std::byte memory[64];
    const TensorPiece good{"w", Dtype::f32, {4, 4}, 1, 2, 1, 3, memory, 4};
    EXPECT_NO_THROW(check_piece(good));
    for (const auto& change : std::initializer_list<void (*)(TensorPiece&)>{
             [](TensorPiece& p) { p.row = 3; }, [](TensorPiece& p) { p.col = -1; }, [](TensorPiece& p) { p.cols = 4; },
             [](TensorPiece& p) { p.rows = -1; }}) {
        TensorPiece bad = good;
        change(bad);
        expect_error([&] { check_piece(bad); }, {"a piece of \"w\" [4, 4]", "must lie inside 4 rows of 4"});
    }
    TensorPiece tight = good;
    tight.row_stride = 2;
    expect_error([&] { check_piece(tight); }, {"3 columns, but its rows lie 2 elements apart"});
}

}  // namespace
}  // namespace keel::test
