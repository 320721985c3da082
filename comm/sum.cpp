#include "comm/sum.h"

#include <algorithm>
#include <cstring>

namespace keel {
namespace {

constexpr std::int64_t block = 1024;                  // elements that stay in L1 while the ranks' rows pass by
constexpr std::int64_t tile_bytes = 64 << 10;         // work of one tile, per rank
constexpr std::int64_t copy_tile_bytes = 256 << 10;

// The type that elements are summed in.
template <class T> struct Wide { using type = T; };
template <> struct Wide<bf16> { using type = float; };
template <> struct Wide<f16> { using type = float; };
template <> struct Wide<std::int64_t> { using type = std::uint64_t; };

struct Sum {
    template <class W> static W of(W a, W b) { return a + b; }
};
struct Largest {
    template <class W> static W of(W a, W b) {
        if constexpr (std::is_floating_point_v<W>) return !(a >= b) && a == a ? b : a;
        else return static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) ? b : a;
    }
};

template <class T, class Op>
void reduce_block(std::span<const std::byte* const> ins, std::span<std::byte* const> outs, std::int64_t begin,
                  std::int64_t n) {
    using W = typename Wide<T>::type;
    W sum[block];
    const auto row = [&](const std::byte* p) { return reinterpret_cast<const T*>(p) + begin; };
    const T* first = row(ins[0]);
    for (std::int64_t i = 0; i < n; ++i) sum[i] = static_cast<W>(first[i]);
    for (std::size_t r = 1; r < ins.size(); ++r) {
        const T* x = row(ins[r]);
        for (std::int64_t i = 0; i < n; ++i) sum[i] = Op::of(sum[i], static_cast<W>(x[i]));
    }
    for (std::byte* out : outs) {
        T* y = reinterpret_cast<T*>(out) + begin;
        for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(sum[i]);
    }
}

template <class T, class Op>
void reduce(Stream* stream, std::span<const std::byte* const> ins, std::span<std::byte* const> outs,
            std::int64_t count) {
    constexpr std::int64_t tile = tile_bytes / static_cast<std::int64_t>(sizeof(T));
    const auto one_tile = [&](std::int64_t t, int) {
        for (std::int64_t i = t * tile; i < std::min(count, (t + 1) * tile); i += block)
            reduce_block<T, Op>(ins, outs, i, std::min(block, std::min(count, (t + 1) * tile) - i));
    };
    const std::int64_t tiles = ceil_div(count, tile);
    if (stream && stream->threads() > 1 && tiles > 1) stream->parallel(tiles, one_tile);
    else for (std::int64_t t = 0; t < tiles; ++t) one_tile(t, 0);
}

template <class Op>
void reduce(Stream* stream, Element element, std::span<const std::byte* const> ins, std::span<std::byte* const> outs,
            std::int64_t count) {
    switch (element) {
        case Element::f32: return reduce<float, Op>(stream, ins, outs, count);
        case Element::f64: return reduce<double, Op>(stream, ins, outs, count);
        case Element::bf16: return reduce<bf16, Op>(stream, ins, outs, count);
        case Element::f16: return reduce<f16, Op>(stream, ins, outs, count);
        case Element::i64: return reduce<std::int64_t, Op>(stream, ins, outs, count);
        case Element::raw: break;
    }
    fail("reduce_in_order: raw bytes have no sum");
}

}  // namespace

void reduce_in_order(Stream* stream, const Group::Call& call, std::span<const std::byte* const> ins,
                     std::span<std::byte* const> outs, std::int64_t count) {
    if (call.kind == Collective::all_reduce_max) reduce<Largest>(stream, call.element, ins, outs, count);
    else reduce<Sum>(stream, call.element, ins, outs, count);
}

void copy_bytes(Stream* stream, std::byte* out, const std::byte* in, std::int64_t bytes) {
    if (bytes <= 0 || out == in) return;
    const std::int64_t tiles = ceil_div(bytes, copy_tile_bytes);
    if (!stream || stream->threads() == 1 || tiles <= 2) {
        std::memcpy(out, in, static_cast<std::size_t>(bytes));
        return;
    }
    stream->parallel(tiles, [&](std::int64_t t, int) {
        const std::int64_t at = t * copy_tile_bytes;
        std::memcpy(out + at, in + at, static_cast<std::size_t>(std::min(copy_tile_bytes, bytes - at)));
    });
}

}  // namespace keel
