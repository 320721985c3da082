// kernels/embedding.h: y = w[id] per token, for the rows of the vocabulary that this shard holds.
//
// Layout  row-major, contiguous. w holds rows [vocab_begin, vocab_begin + vocab) of the whole table; an id outside of
//         them yields zeros (another shard has it), and its gradient is dropped. T is float, bf16 or f16.
// Order   asynchronous on `stream`. A row's gradient is summed in token order: same inputs, same bits.
// Errors  throws Error before launching if shapes disagree. Ids are checked against the vocabulary where data enters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

template <class T> struct EmbeddingForward {
    View<T> y;                      // [tokens, hidden]  written
    View<const std::int32_t> ids;   // [tokens]          read
    View<const T> w;                // [vocab, hidden]   read
    std::int64_t vocab_begin;
};
template <class T> struct EmbeddingBackward {
    View<float> dw;                 // [vocab, hidden]   accumulated
    View<const T> dy;               // [tokens, hidden]  read
    View<const std::int32_t> ids;   // [tokens]          read
    std::int64_t vocab_begin;
    // On a GPU, which sorts the ids: embedding_scratch_bytes(tokens). The CPU wants none.
    std::optional<View<std::byte>> scratch = std::nullopt;
};
template <class T> void embedding_forward(Stream& stream, const EmbeddingForward<T>& args);
template <class T> void embedding_backward(Stream& stream, const EmbeddingBackward<T>& args);
std::int64_t embedding_scratch_bytes(std::int64_t tokens);

}  // namespace keel
