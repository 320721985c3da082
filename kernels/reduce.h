// kernels/reduce.h: sums over a whole tensor: norm, finite, hash, plain sum.
//
// Layout  flat, contiguous. `scratch` is reduce_scratch_bytes(n).
// Order   asynchronous on `stream`. A fixed tree that depends on n alone: same inputs, same bits, on any device.
// Errors  throws Error before launching if the output has not one element or scratch is too small.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

struct SumOfSquares {          // NaN and infinity come through: a finite result means every element is finite and sane
    View<double> out;          // [1]  written
    View<std::byte> scratch;   // reduce_scratch_bytes(n)
    View<const float> x;       // [n]  read
};
struct Sum {
    View<double> out;          // [1]  written
    View<std::byte> scratch;
    View<const float> x;       // [n]  read
};
struct CountNonfinite {
    View<std::int64_t> out;    // [1]  written; how many elements are NaN or infinite
    View<std::byte> scratch;
    View<const float> x;       // [n]  read
};
struct Hash {                  // of the bytes; equal only if every bit is. XXH3-64 per block, then of the block hashes
    View<std::uint64_t> out;   // [1]  written
    View<std::byte> scratch;
    View<const std::byte> x;   // [bytes]  read
};
void sum_of_squares(Stream& stream, const SumOfSquares& args);
void sum(Stream& stream, const Sum& args);
void count_nonfinite(Stream& stream, const CountNonfinite& args);
void hash(Stream& stream, const Hash& args);
std::int64_t reduce_scratch_bytes(std::int64_t n);  // n elements, or bytes for hash

// The tree. Elements (bytes, for hash) that make one partial result; partial results are added in order. In a block,
// element i goes to accumulator i % reduce_lanes, and accumulators are added in a tree. Part of every result's meaning.
constexpr std::int64_t reduce_block = 1 << 14;
constexpr int reduce_lanes = 32;

}  // namespace keel
