// engine/fault/known_product.h: matrices of small whole numbers whose product is known: the question and the answer of the
// self-tests.
//
// a[i,k] = f(i + 3k) and b[k,j] = f(5k + j), with f(t) = t mod 17 - 8. Over 17 values of k in a row, 3k + i takes each residue
// once, so the sum over k depends on i and j through (3j - 5i) mod 17 alone: 17 numbers are the whole answer. The operands are
// exact in every type keel computes in, and the largest partial sum is depth * 64 < 2^16, exact in float: the order of sums, the
// instruction set and the number of threads cannot matter.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace keel::known_product {

constexpr std::int64_t period = 17, depth = 30 * period;

constexpr int f(std::int64_t t) { return static_cast<int>(((t % period) + period) % period) - 8; }
constexpr int a(std::int64_t i, std::int64_t k) { return f(i + 3 * k); }
constexpr int b(std::int64_t k, std::int64_t j) { return f(5 * k + j); }

constexpr std::array<int, period> sums_of_residues() {
    std::array<int, period> sums{};
    for (std::int64_t j = 0; j < period; ++j) {  // i = 0
        int sum = 0;
        for (std::int64_t k = 0; k < depth; ++k) sum += a(0, k) * b(k, j);
        sums[static_cast<std::size_t>(3 * j % period)] = sum;
    }
    return sums;
}
constexpr std::array<int, period> sums = sums_of_residues();

constexpr int product(std::int64_t i, std::int64_t j) {
    return sums[static_cast<std::size_t>(((3 * j - 5 * i) % period + period) % period)];
}

}  // namespace keel::known_product
