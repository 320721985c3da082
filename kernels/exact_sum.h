// kernels/exact_sum.h: sums whose order cannot matter: floats become integers of a common scale, and integers add exactly.
//
//   add      q += round(x * 2^scale), to nearest even
//   read     y = q * 2^-scale, rounded once
//   squares  the sum of round(x * x * 2^scale), of up to 2^30 elements, as three limbs: s[0] + s[1] 2^40 + s[2] 2^80
//
// Whoever adds n numbers of at most m chooses n * m * 2^scale < 2^62; max_abs says what m is. Limbs of several ranks or
// pieces may be added limb by limb.
//
// Layout  flat, contiguous.
// Order   asynchronous on `stream`. The result does not depend on the order of anything.
// Errors  throws Error before launching if sizes disagree. A product past 2^62 in size is undefined: look at max_abs first.
#pragma once

#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

struct ExactAdd {
    View<std::int64_t> q;        // [n]  accumulated
    View<const float> x;         // [n]  read
    int scale;
};
struct ExactRead {
    View<float> y;               // [n]  written
    View<const std::int64_t> q;  // [n]  read
    int scale;
};
struct MaxAbs {                  // largest |x|; NaN if one is
    View<float> out;             // [1]  written, or accumulated: what was there, if that is larger or NaN
    View<const float> x;         // [n]  read
    bool accumulate = false;
};
struct ExactSquares {
    View<std::int64_t> limbs;    // [3]  accumulated
    View<const float> x;         // [n]  read
    int scale;
};
void exact_add(Stream& stream, const ExactAdd& args);
void exact_read(Stream& stream, const ExactRead& args);
void max_abs(Stream& stream, const MaxAbs& args);
void exact_squares(Stream& stream, const ExactSquares& args);

// The sum that three limbs of squares stand for.
double exact_value(const std::int64_t* limbs, int scale);

}  // namespace keel
