#include "kernels/matmul_tile.h"

#include <array>
#include <utility>

namespace keel::tile {
namespace {

using simd::Float;

template <int rows, int vectors>
[[gnu::always_inline]] inline void finish(const Product& p, const Float (&sum)[rows][vectors]) {
    const auto each = [&](auto value) {
#pragma GCC unroll 14
        for (int r = 0; r < rows; ++r)
#pragma GCC unroll 3
            for (int v = 0; v < vectors; ++v) simd::store(p.c + r * p.c_stride + v * lanes, value(r, v));
    };
    const auto c = [&](int r, int v) { return simd::load(p.c + r * p.c_stride + v * lanes); };
    if (p.finish == Finish::store)
        each([&](int r, int v) { return sum[r][v]; });
    else if (p.finish == Finish::add)
        each([&](int r, int v) { return c(r, v) + sum[r][v]; });
    else
        each([&](int r, int v) { return c(r, v) * simd::load(p.scale + v * lanes) + sum[r][v]; });
}

template <int rows, int vectors, Order order>
void kernel(const Product& p) {
    Float sum[rows][vectors] = {};
    // Rows of A hang on every third pointer (base, base + stride, base + 2 * stride are single x86 addresses), which
    // leaves the accumulators their registers and the loop its counters.
    constexpr int bases = order == Order::rows ? (rows + 2) / 3 : 1;
    const float* a[bases];
    for (int i = 0; i < bases; ++i) a[i] = p.a + 3 * i * p.a_stride;
    const float* b = p.b;
    const std::int64_t a_stride = p.a_stride, b_stride = p.b_stride;
    const auto step = [&] {
        Float y[vectors];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) y[v] = simd::load(b + v * lanes);
#pragma GCC unroll 14
        for (int r = 0; r < rows; ++r) {
            const Float x =
                simd::set(order == Order::rows ? a[order == Order::rows ? r / 3 : 0][(r % 3) * a_stride] : a[0][r]);
#pragma GCC unroll 3
            for (int v = 0; v < vectors; ++v) sum[r][v] += x * y[v];
        }
        b += b_stride;
        if constexpr (order == Order::rows) {
#pragma GCC unroll 5
            for (int i = 0; i < bases; ++i) ++a[i];
        } else {
            a[0] += a_stride;
        }
    };
    std::int64_t k = 0;
    if (p.ahead.b) {
        Product::Ahead ahead = p.ahead;
        const std::int64_t back = ahead.a_step - ahead.a_rows * ahead.a_row;
        std::int64_t row = 0, c_rows = ahead.c ? rows : 0;
        for (; k + 4 <= p.k; k += 4) {
            __builtin_prefetch(ahead.b, 0, 2);
            __builtin_prefetch(ahead.a, 0, 2);
            if (--c_rows >= 0) {
                __builtin_prefetch(ahead.c, 1, 3);
                if (vectors * sizeof(Float) > 64) __builtin_prefetch(ahead.c + 16, 1, 3);
                ahead.c += p.c_stride;
            }
            ahead.b += 64;
            ahead.a += ahead.a_row;
            if (++row == ahead.a_rows) row = 0, ahead.a += back;
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) step();
        }
    }
    for (; k < p.k; ++k) step();
    finish(p, sum);
}

template <Order order, int... row>
constexpr std::array<Kernels, sizeof...(row)> table(std::integer_sequence<int, row...>) {
    return {Kernels{kernel<row + 1, 1, order>, kernel<row + 1, 2, order>}...};
}
constexpr auto by_rows = table<Order::rows>(std::make_integer_sequence<int, max_rows>{});
constexpr auto by_columns = table<Order::columns>(std::make_integer_sequence<int, max_rows>{});

template <Order order, int... row>
constexpr std::array<void (*)(const Product&), sizeof...(row)> table_of_three(std::integer_sequence<int, row...>) {
    return {kernel<row + 1, 3, order>...};
}
constexpr auto three_by_rows = table_of_three<Order::rows>(std::make_integer_sequence<int, max_rows_of_three>{});
constexpr auto three_by_columns = table_of_three<Order::columns>(std::make_integer_sequence<int, max_rows_of_three>{});

}  // namespace

Kernels kernels(Order order, std::int64_t rows) {
    return (order == Order::rows ? by_rows : by_columns)[static_cast<std::size_t>(rows - 1)];
}
void (*kernel_of_three(Order order, std::int64_t rows))(const Product&) {
    return (order == Order::rows ? three_by_rows : three_by_columns)[static_cast<std::size_t>(rows - 1)];
}

}  // namespace keel::tile
