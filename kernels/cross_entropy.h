// kernels/cross_entropy.h: loss = lse(logits) - logits[label] (+ z_loss * lse^2), written for a shard of the vocabulary.
//
// Two passes. `stats` reduces the shard's columns to three numbers per token; between the passes the ranks of a
// vocabulary-parallel group join them (cross_entropy_merge says how); `grad` writes losses and the gradient of their
// sum. Logits arrive in chunks of tokens and never exist whole. Loss is a sum; who counts tokens divides, once.
//
// Layout  logits are float, [tokens, vocab]: columns [vocab_begin, vocab_begin + vocab) of the whole row. Rows may be
//         strided: a narrower View leaves out the padding of a vocabulary. T is the gradient's type.
// Order   asynchronous on `stream`. Same inputs, same bits, on any number of threads.
// Errors  throws Error before launching if shapes disagree. A label of -1 is ignored: loss 0, gradient 0.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

struct CrossEntropyStats {
    View<float> max;                   // [tokens]         written; largest logit of this shard
    View<float> sum;                   // [tokens]         written; sum of exp(logit - max)
    View<float> target;                // [tokens]         written; logit of the label, 0 if another shard holds it
    View<const float> logits;          // [tokens, vocab]  read
    View<const std::int32_t> labels;   // [tokens]         read; -1 is ignored
    std::int64_t vocab_begin;
};
// Before the sums are added over ranks, each rank brings its own to the common maximum: sum *= exp(max - common).
struct CrossEntropyMerge {
    View<float> sum;                   // [tokens]  rescaled in place
    View<const float> max, common;     // [tokens]  read
};
template <class T> struct CrossEntropyGrad {
    View<float> loss;                  // [tokens]         written
    View<T> dlogits;                   // [tokens, vocab]  written; may be logits itself if T is float
    View<const float> logits;          // [tokens, vocab]  read
    View<const std::int32_t> labels;   // [tokens]         read
    View<const float> max, sum, target;  // [tokens]       read; over the whole vocabulary
    std::int64_t vocab_begin;
    float z_loss;                      // 0 turns it off
    float scale = 1;                   // of the gradient alone, so that f16 holds it (engine/fault/loss_scale.h)
};
void cross_entropy_stats(Stream& stream, const CrossEntropyStats& args);
void cross_entropy_merge(Stream& stream, const CrossEntropyMerge& args);
template <class T> void cross_entropy_grad(Stream& stream, const CrossEntropyGrad<T>& args);
// The losses alone, for evaluation: the z term is left out, so that it is comparable across runs.
struct CrossEntropyLoss {
    View<float> loss;                  // [tokens]  written
    View<const std::int32_t> labels;   // [tokens]  read
    View<const float> max, sum, target;
};
void cross_entropy_loss(Stream& stream, const CrossEntropyLoss& args);

}  // namespace keel
