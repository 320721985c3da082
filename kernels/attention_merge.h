// kernels/attention_merge.h: attention over the parts of a row's keys, put together into attention over all of them.
//
//   l = log(e^lse + e^part_lse),   sum = sum e^(lse - l) + part e^(part_lse - l),   lse = l
//
// Sums are float whatever T is, so a result is rounded to T twice however many parts there are: when its part was
// written, and by round_sum at the end. Merging into a y of T would round it once for every part. Derivation:
// docs/kernel_math.md.
//
// Layout  rows may be strided; lse contiguous. T is float, bf16 or f16.
// Order   asynchronous on `stream`. Same inputs, same bits, on any number of threads. Parts count in the order of calls.
// Errors  throws Error before launching if shapes disagree.
// Alias   none.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

// A query that saw no key of the part (part_lse is -infinity, part is 0) changes nothing, not a bit.
template <class T>
struct AttentionMerge {
    View<float> sum;             // [tokens, heads * head_dim]  accumulated
    View<float> lse;             // [heads, tokens]             accumulated
    View<const T> part;          // [tokens, heads * head_dim]  read; y of one part of the keys
    View<const float> part_lse;  // [heads, tokens]             read
    bool accumulate = true;      // false for the first part: sum and lse are written, not read
};
template <class T>
void attention_merge(Stream& stream, const AttentionMerge<T>& args);

// Gradients of parts: sum += part.
template <class T>
struct AddPart {
    View<float> sum;     // [rows, columns]  accumulated
    View<const T> part;  // [rows, columns]  read
};
template <class T>
void add_part(Stream& stream, const AddPart<T>& args);

template <class T>
struct RoundSum {           // y = T(sum)
    View<T> y;              // [rows, columns]  written
    View<const float> sum;  // [rows, columns]  read
};
template <class T>
void round_sum(Stream& stream, const RoundSum<T>& args);

}  // namespace keel
