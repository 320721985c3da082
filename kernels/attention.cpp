#include "kernels/attention.h"

#include "kernels/attention_amx_backward.h"
#include "kernels/attention_amx_forward.h"
#include "kernels/attention_backward.h"
#include "kernels/attention_forward.h"
#include "kernels/cuda_ops.h"
#include "kernels/rope_rows.h"

namespace keel {
namespace {

using attention::Rows;

struct Sizes {
    std::int64_t tokens, kv_tokens, heads, kv_heads;
};

// The words of a message; literals, because a check that passes must not allocate.
struct Names {
    const char *op, *v, *y, *lse, *lo;
};
constexpr Names forward_names{"attention_forward", "attention_forward: v", "attention_forward: y",
                              "attention_forward: lse", "attention_forward: lo"};
constexpr Names backward_names{"attention_backward", "attention_backward: v", "attention_backward: y",
                               "attention_backward: lse", "attention_backward: lo"};

template <class Args>
Sizes check(const Names& name, const Args& a) {
    const auto matrix = [&](const char* what, const auto& v) {
        if (v.rank() != 2)
            fail(name.op, ": ", what, " is ", v.shape(), ", but must be a matrix [tokens, heads * head_dim]");
    };
    matrix("q", a.q);
    matrix("k", a.k);
    if (a.head_dim < 1 || a.head_dim > 256) fail(name.op, ": head_dim is ", a.head_dim, "; it must be in 1…256");
    if (a.query_offset < 0) fail(name.op, ": query_offset is ", a.query_offset, "; it cannot be negative");
    if (a.key_begin < 0) fail(name.op, ": key_begin is ", a.key_begin, "; it cannot be negative");
    if (a.q.dim(1) % a.head_dim || a.k.dim(1) % a.head_dim)
        fail(name.op, ": rows of q and k hold ", a.q.dim(1), " and ", a.k.dim(1),
             " elements; both must be heads times head_dim ", a.head_dim);
    const Sizes s{a.q.dim(0), a.k.dim(0), a.q.dim(1) / a.head_dim, a.k.dim(1) / a.head_dim};
    if (s.kv_heads == 0 || s.heads % s.kv_heads)
        fail(name.op, ": ", s.heads, " heads cannot share ", s.kv_heads,
             " kv heads; heads must be a multiple of kv heads");
    expect_shape(name.v, a.v, {s.kv_tokens, a.k.dim(1)});
    expect_shape(name.y, a.y, {s.tokens, a.q.dim(1)});
    expect_shape(name.lse, a.lse, {s.heads, s.tokens});
    expect_contiguous(name.lse, a.lse);
    expect_shape(name.lo, a.lo, {s.tokens});
    expect_contiguous(name.lo, a.lo);
    return s;
}

template <class Args>
void check_lo(const Names& name, const Args& a) {
    for (std::int64_t i = 0; i < a.lo.dim(0); ++i)
        if (a.lo[i] < 0 || a.lo[i] > a.query_offset + i)
            fail(name.op, ": lo[", i, "] is ", a.lo[i], "; query ", i, " is at key ", a.query_offset + i,
                 ", so it must be in 0…", a.query_offset + i);
}

constexpr rope::Names q_rope_names{"attention_backward: q_rope", "attention_backward: q_rope table",
                                   "attention_backward: q_rope positions"};
constexpr rope::Names k_rope_names{"attention_backward: k_rope", "attention_backward: k_rope table",
                                   "attention_backward: k_rope positions"};

void check_workspace(const char* op, const Stream& stream, std::int64_t bytes) {
    if (stream.workspace_bytes() < bytes)
        fail(op, ": the stream has ", stream.workspace_bytes(), " bytes of workspace a thread; give it ", bytes);
}

template <class Args>
Rows rows_of_head(const Args& a, const Sizes& s, std::int64_t kv_head) {
    return {s.heads / s.kv_heads, s.tokens,   a.query_offset - a.key_begin, kv_head, a.head_dim,
            a.key_begin,          s.kv_tokens};
}

// Keys a task of the backward owns: fewer where there would be less than 16 tasks.
std::int64_t keys_per_task(const Sizes& s, std::int64_t most) {
    std::int64_t keys = most;
    while (keys > 32 && ceil_div(s.kv_tokens, keys) * s.kv_heads < 16) keys /= 2;
    return keys;
}

// The tile path scales scores after it has found their maximum, so it wants a positive scale.
template <class T>
bool uses_tiles([[maybe_unused]] float scale) {
#if KEEL_AMX
    return std::is_same_v<T, bf16> && scale > 0 && bf16_unit() == Bf16Unit::tiles;
#else
    return false;
#endif
}

// What a task works on at most. On tiles it depends on how far queries see, because no bit depends on it: every sum is
// one chain, over keys or over rows.
struct Most {
    std::int64_t tiles = attention::most_tiles, keys = attention::most_keys;

    template <class Args>
    Most([[maybe_unused]] const Args& a, [[maybe_unused]] bool on_tiles) {
#if KEEL_AMX
        for (std::int64_t i = 0; on_tiles && i < a.lo.dim(0); ++i)
            if (a.query_offset + i - a.lo[i] >= attention::most_keys)
                tiles = attention::amx_most_tiles, keys = attention::amx_most_keys;
#endif
    }
};

std::int64_t forward_bytes(std::int64_t head_dim) {
#if KEEL_AMX
    return std::max(attention::forward_floats(head_dim) * 4, attention::amx_forward_bytes(head_dim));
#else
    return attention::forward_floats(head_dim) * 4;
#endif
}
std::int64_t backward_bytes(std::int64_t head_dim) {
#if KEEL_AMX
    return std::max(attention::backward_floats(head_dim) * 4, attention::amx_backward_bytes(head_dim));
#else
    return attention::backward_floats(head_dim) * 4;
#endif
}

}  // namespace

template <class T>
void attention_forward(Stream& stream, const AttentionForward<T>& args) {
    const Sizes s = check(forward_names, args);
    if (s.tokens == 0) return;
    if (run_on_device(stream, args)) return;
    check_lo(forward_names, args);
    [[maybe_unused]] const bool on_tiles = uses_tiles<T>(args.scale);
    check_workspace("attention_forward", stream, forward_bytes(args.head_dim));
    const std::int64_t tiles = rows_of_head(args, s, 0).tiles();
    std::int64_t most = Most(args, on_tiles).tiles;  // fewer where there would be less than 16 tasks
    while (most > 1 && ceil_div(tiles, most) * s.kv_heads < 16) most /= 2;
    const tile::Cut tasks(tiles, most);
    stream.parallel(tasks.pieces * s.kv_heads, [&](std::int64_t i, int thread) {
        const std::int64_t task =
            tasks.pieces - 1 - i / s.kv_heads;  // the longest come first: a later query sees more keys
#if KEEL_AMX
        if constexpr (std::is_same_v<T, bf16>)
            if (on_tiles)
                return attention::amx_forward_tiles(args, rows_of_head(args, s, i % s.kv_heads), tasks.begin(task),
                                                    tasks.size(task), stream.workspace(thread));
#endif
        attention::forward_tiles(args, rows_of_head(args, s, i % s.kv_heads), tasks.begin(task), tasks.size(task),
                                 reinterpret_cast<float*>(stream.workspace(thread)));
    });
}

template <class T>
void attention_backward(Stream& stream, const AttentionBackward<T>& args) {
    const Sizes s = check(backward_names, args);
    expect_shape("attention_backward: dy", args.dy, {s.tokens, args.q.dim(1)});
    expect_shape("attention_backward: dq", args.dq, {s.tokens, args.q.dim(1)});
    expect_shape("attention_backward: dk", args.dk, {s.kv_tokens, args.k.dim(1)});
    expect_shape("attention_backward: dv", args.dv, {s.kv_tokens, args.k.dim(1)});
    if (args.q_rope) rope::check_angles(q_rope_names, *args.q_rope, s.tokens, args.head_dim);
    if (args.k_rope) rope::check_angles(k_rope_names, *args.k_rope, s.kv_tokens, args.head_dim);
    const std::int64_t need = attention_scratch_bytes(s.tokens, s.heads, s.kv_tokens, s.kv_heads, args.head_dim);
    if (args.scratch.bytes() < need)
        fail("attention_backward: scratch has ", args.scratch.bytes(), " bytes, but ", need,
             " are needed; see attention_scratch_bytes");
    if (run_on_device(stream, args)) return;
    check_lo(backward_names, args);
    if (args.q_rope) rope::check_positions(q_rope_names, *args.q_rope);
    if (args.k_rope) rope::check_positions(k_rope_names, *args.k_rope);
    [[maybe_unused]] const bool on_tiles = uses_tiles<T>(args.scale);
    check_workspace("attention_backward", stream, backward_bytes(args.head_dim));

    const attention::BackwardScratch scratch(args.scratch.data(), s.tokens, s.heads, s.kv_heads, args.head_dim);
    const std::int64_t keys = keys_per_task(s, Most(args, on_tiles).keys);
    const Rows list = rows_of_head(args, s, 0);
    stream.parallel(list.tiles(), [&](std::int64_t i, int) {
        attention::backward_prepare(args, list, i, s.kv_heads, keys, scratch);
    });
    stream.parallel(ceil_div(s.kv_tokens, keys) * s.kv_heads, [&](std::int64_t i, int thread) {
#if KEEL_AMX
        if constexpr (std::is_same_v<T, bf16>)
            if (on_tiles)
                return attention::amx_backward_block(args, rows_of_head(args, s, i % s.kv_heads), i / s.kv_heads, keys,
                                                     scratch, stream.workspace(thread));
#endif
        attention::backward_block(args, rows_of_head(args, s, i % s.kv_heads), i / s.kv_heads, keys, scratch,
                                  reinterpret_cast<float*>(stream.workspace(thread)));
    });
}

std::int64_t attention_scratch_bytes(std::int64_t tokens, std::int64_t heads, std::int64_t, std::int64_t kv_heads,
                                     std::int64_t head_dim) {
    const attention::BackwardScratch::Sizes bytes(tokens, heads, kv_heads, head_dim);
    return bytes.dq + bytes.turn + bytes.begin;
}

template void attention_forward(Stream&, const AttentionForward<float>&);
template void attention_forward(Stream&, const AttentionForward<bf16>&);
template void attention_forward(Stream&, const AttentionForward<f16>&);
template void attention_backward(Stream&, const AttentionBackward<float>&);
template void attention_backward(Stream&, const AttentionBackward<bf16>&);
template void attention_backward(Stream&, const AttentionBackward<f16>&);

}  // namespace keel
