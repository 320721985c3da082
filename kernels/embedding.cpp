#include "kernels/embedding.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda_ops.h"
#include "kernels/simd.h"
#include "kernels/tiles.h"

namespace keel {
namespace {

template <class T> void check(const EmbeddingForward<T>& a) {
    if (a.w.rank() != 2) fail("embedding: w is ", a.w.shape(), ", but must be [vocab, hidden]");
    expect_contiguous("embedding: w", a.w);
    if (a.ids.rank() != 1) fail("embedding: ids is ", a.ids.shape(), ", but must be [tokens]");
    expect_shape("embedding: y", a.y, {a.ids.dim(0), a.w.dim(1)});
    expect_contiguous("embedding: y", a.y);
}
template <class T> void check(const EmbeddingBackward<T>& a) {
    if (a.dw.rank() != 2) fail("embedding: dw is ", a.dw.shape(), ", but must be [vocab, hidden]");
    expect_contiguous("embedding: dw", a.dw);
    if (a.ids.rank() != 1) fail("embedding: ids is ", a.ids.shape(), ", but must be [tokens]");
    expect_shape("embedding: dy", a.dy, {a.ids.dim(0), a.dw.dim(1)});
    expect_contiguous("embedding: dy", a.dy);
}

template <class T> void forward_cpu(Stream& stream, const EmbeddingForward<T>& a) {
    const std::int64_t vocab = a.w.dim(0), hidden = a.w.dim(1);
    const auto bytes = static_cast<std::size_t>(hidden) * sizeof(T);
    parallel_rows(stream, a.ids.dim(0), hidden, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
            const std::int64_t row = a.ids[t] - a.vocab_begin;
            if (row >= 0 && row < vocab) std::memcpy(a.y.row(t), a.w.row(row), bytes);
            else std::memset(static_cast<void*>(a.y.row(t)), 0, bytes);
        }
    });
}

// A tile owns columns and walks all tokens, so a row's gradient is summed in token order however often an id repeats,
// and only rows that occur are touched. 64 columns are four cache lines of dw: no two tiles share a line of it.
constexpr std::int64_t tile_columns = 64;

template <class T> void backward_cpu(Stream& stream, const EmbeddingBackward<T>& a) {
    const std::int64_t vocab = a.dw.dim(0), hidden = a.dw.dim(1), tokens = a.ids.dim(0);
    stream.parallel(ceil_div(hidden, tile_columns), [&](std::int64_t tile, int) {
        const std::int64_t begin = tile * tile_columns, columns = std::min(tile_columns, hidden - begin);
        for (std::int64_t t = 0; t < tokens; ++t) {
            const std::int64_t row = a.ids[t] - a.vocab_begin;
            if (row < 0 || row >= vocab) continue;
            float* dw = a.dw.row(row) + begin;
            const T* dy = a.dy.row(t) + begin;
            simd::sweep(columns, [&](auto at) { at.store(dw, at.load(dw) + at.load(dy)); });
        }
    });
}

}  // namespace

// Two arrays of keys and two of tokens, and what the sort wants: as much again, and its histograms.
std::int64_t embedding_scratch_bytes(std::int64_t tokens) { return 4 * 4 * (tokens + 64) + 12 * tokens + (1 << 20); }

template <class T> void embedding_forward(Stream& stream, const EmbeddingForward<T>& args) {
    check(args);
    if (run_on_device(stream, args)) return;
    forward_cpu(stream, args);
}
template <class T> void embedding_backward(Stream& stream, const EmbeddingBackward<T>& args) {
    check(args);
    if (stream.device() != Device::cpu) {
        const std::int64_t need = embedding_scratch_bytes(args.ids.dim(0));
        const std::int64_t have = args.scratch ? args.scratch->bytes() : 0;
        if (have < need)
            fail("embedding: scratch has ", have, " bytes, but ", args.ids.dim(0), " tokens need ", need,
                 " on a GPU; reserve embedding_scratch_bytes(tokens)");
    }
    if (run_on_device(stream, args)) return;
    backward_cpu(stream, args);
}

template void embedding_forward<float>(Stream&, const EmbeddingForward<float>&);
template void embedding_forward<bf16>(Stream&, const EmbeddingForward<bf16>&);
template void embedding_forward<f16>(Stream&, const EmbeddingForward<f16>&);
template void embedding_backward<float>(Stream&, const EmbeddingBackward<float>&);
template void embedding_backward<bf16>(Stream&, const EmbeddingBackward<bf16>&);
template void embedding_backward<f16>(Stream&, const EmbeddingBackward<f16>&);

}  // namespace keel
