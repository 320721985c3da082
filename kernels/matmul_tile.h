// kernels/matmul_tile.h: the register-blocked heart of every CPU product in float, C = A B on 14 x 2 or 9 x 3 vectors.
//
// C is a tile of `rows` rows by one to three vectors; each of its elements is one chain of fused multiply-adds over k,
// started from zero, whatever the shape of the tile. A is read an element at a time and spread over the lanes, so it
// may lie in memory either way round and needs no packing; B is read a vector at a time, k after k. What breaks it:
// reading past a row of B (columns are whole vectors), and sums that depend on the tile's shape.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/simd.h"

namespace keel::tile {

// Accumulators, two vectors of B and one spread element of A fill the registers: 14 * 2 + 3 of 32, or 6 * 2 + 3 of 16.
// Three vectors at a time suit a C of three: 9 * 3 + 4 of 32, or 4 * 3 + 4 of 16.
#if defined(__AVX512F__)
constexpr int max_rows = 14, max_rows_of_three = 9;
#else
constexpr int max_rows = 6, max_rows_of_three = 4;
#endif
constexpr int lanes = simd::width;
constexpr int panel = 2 * lanes;  // columns of a full tile

enum class Order { rows, columns };           // element (r, k) of A is a[r * stride + k], or a[k * stride + r]
enum class Finish { store, add, scale_add };  // c = sum, c + sum, c * scale[column] + sum

struct Product {
    const float* a;
    std::int64_t a_stride;
    const float* b;  // [k][columns], rows b_stride apart
    std::int64_t b_stride;
    std::int64_t b_panel;  // from one panel of B to the next; `panel` where B is a plain matrix
    float* c;
    std::int64_t c_stride;
    std::int64_t k;
    Finish finish = Finish::store;
    const float* scale = nullptr;  // [columns], for scale_add
    // What the next products will touch, asked nearer while this one is worked; never read here, so any address will
    // do. For every 4 k: 64 bytes from b on; a line from the next of a_rows rows of a, which go on by a_step once all
    // were asked; and the panel's width of the next row of c, until its rows are through. Null asks for nothing.
    struct Ahead {
        const char *a = nullptr, *b = nullptr;
        float* c = nullptr;
        std::int64_t a_row = 0, a_rows = 1, a_step = 0;  // bytes, but a_rows
    };
    Ahead ahead = Ahead();
};

// The kernels for a tile of `rows` rows, at most max_rows, by one and by two vectors.
struct Kernels {
    void (*narrow)(const Product&);
    void (*wide)(const Product&);
};
Kernels kernels(Order order, std::int64_t rows);
// By three vectors, which must lie side by side; at most max_rows_of_three rows.
void (*kernel_of_three(Order order, std::int64_t rows))(const Product&);

// The pieces in which `total` rows are worked: even, the longer ones first, none longer than `most`. One division here,
// because many pieces are asked for in loops that are as short as one.
struct Cut {
    std::int64_t total, pieces, least, longer;
    Cut(std::int64_t length, std::int64_t most) : Cut(length, most, (length + most - 1) / most) {}
    // At least so many pieces.
    Cut(std::int64_t length, std::int64_t most, std::int64_t count)
        : total(length),
          pieces(std::max(count, (length + most - 1) / most)),
          least(pieces > 0 ? total / pieces : 0),
          longer(total - least * pieces) {}
    std::int64_t begin(std::int64_t i) const { return i * least + (i < longer ? i : longer); }
    std::int64_t size(std::int64_t i) const { return least + (i < longer ? 1 : 0); }
};

// C [rows, columns] for any number of rows; columns is a multiple of `lanes`. before() is called before every tile.
template <class Before>
void product(Order order, std::int64_t rows, std::int64_t columns, const Product& args, Before before) {
    const bool three = columns == 3 * lanes && args.b_panel == panel;
    const Cut cut(rows, three ? max_rows_of_three : max_rows);
    for (std::int64_t i = 0; i < cut.pieces; ++i) {
        const std::int64_t row = cut.begin(i);
        Product p = args;
        p.a += order == Order::rows ? row * args.a_stride : row;
        p.c += row * args.c_stride;
        if (three) {
            before();
            kernel_of_three(order, cut.size(i))(p);
            continue;
        }
        const Kernels kernel = kernels(order, cut.size(i));
        for (std::int64_t column = 0; column < columns; column += panel) {
            before();
            (column + panel <= columns ? kernel.wide : kernel.narrow)(p);
            p.b += args.b_panel;
            p.c += panel;
            if (p.scale) p.scale += panel;
        }
    }
}

}  // namespace keel::tile
