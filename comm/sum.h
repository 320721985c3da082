// comm/sum.h: what ranks brought, reduced element by element in the order of ranks. Every transport moves data; the
// arithmetic is here, once, so that all of them give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/group.h"

namespace keel {

// out[i] = in[0][i] + in[1][i] + … for 0 ≤ i < count, from left to right, written to every pointer of `outs`; an out
// may be one of the ins. call.kind chooses sum or maximum, call.element the type. bf16 and f16 are summed in float and rounded
// once, int64 wraps around, a NaN is the largest number. `stream` may be null; its threads do not change the bits.
// Allocates nothing.
void reduce_in_order(Stream* stream, const Group::Call& call, std::span<const std::byte* const> ins,
                     std::span<std::byte* const> outs, std::int64_t count);

// memcpy by the threads of `stream` where it is long.
void copy_bytes(Stream* stream, std::byte* out, const std::byte* in, std::int64_t bytes);

}  // namespace keel
