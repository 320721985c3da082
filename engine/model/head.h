// engine/model/head.h: the output layer and the loss, in chunks of tokens, so that logits never exist whole.
//
// The head is cut by vocabulary: each tensor-parallel rank computes its columns of the logits, and three numbers per token
// join them: the largest, the sum of exponentials, the target's logit (kernels/cross_entropy.h).
#pragma once

#include <cstdint>
#include <optional>

#include "engine/parallel/layout.h"
#include "engine/parallel/tensor.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

// Buffers for a chunk of `chunk` tokens.
template <class T> struct HeadBuffers {
    std::int64_t chunk;
    View<float> logits;                                // [chunk, vocab of this rank]
    View<float> max, sum, target;                      // [chunk]
    std::optional<View<float>> common;                 // [chunk]  with tp
    std::optional<View<T>> dlogits;                    // [chunk, vocab]  where logits cannot hold it
    std::optional<View<T>> whole_norm, whole_dnorm;    // [tokens, hidden]  with sequence parallelism
};
template <class T> struct HeadLoss {
    View<float> loss;                                  // [tokens]  written
    std::optional<View<T>> dnorm;                      // [rows, hidden]  written: with it, gradients are computed
    std::optional<View<float>> dw;                     // [vocab, hidden]  accumulated, or written by the first chunk
    bool accumulate = true;
    View<const T> norm;                                // [rows, hidden]  read
    View<const T> w;                                   // [vocab, hidden]  read; rows of this rank
    View<const std::int32_t> labels;                   // [tokens]
    std::int64_t vocab_begin;
    float z_loss;
    float scale = 1;                                   // of gradients
};
template <class T>
void head_loss(Stream& s, const TensorParallel& tp, const HeadBuffers<T>& buffers, const HeadLoss<T>& args);

}  // namespace keel
