// tests/kernels/rounding.h: how far storing a result in T may move it.
#pragma once

#include <type_traits>

#include "kernels/base/dtype.h"

namespace keel {

// Half a unit in the last place of 8 or 11 bits, relative; 0 for float, whose sums already count every rounding.
template <class T>
constexpr double rounding = 0;
template <>
inline constexpr double rounding<bf16> = 0x1p-8;
template <>
inline constexpr double rounding<f16> = 0x1p-11;

// Of a result of this size or less. Below 2^-14 f16 has a fixed step of 2^-24. (bf16 has as many exponents as float.)
template <class T>
double rounding_of(double size) {
    return rounding<T> * size + (std::is_same_v<T, f16> ? 0x1p-25 : 0.0);
}

}  // namespace keel
