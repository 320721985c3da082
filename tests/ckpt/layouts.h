// tests/ckpt/layouts.h: the ways in which ranks may own a model, and the memory of one rank under each.
#pragma once

#include <string>
#include <vector>

#include "ckpt/piece.h"
#include "tests/ckpt/support.h"

namespace keel::test {

// Tensors go to stages in turn; within a stage, matrices are cut by columns or rows in turn, and the rows of a slice,
// laid end to end, in uneven parts: pipeline, tensor parallelism, and an optimizer sharded over data parallelism.
struct CutLayout {
    std::string name;
    int pp, tp, dp;
    int ranks() const { return pp * tp * dp; }
};

inline const std::vector<CutLayout>& cut_layouts() {
    static const std::vector<CutLayout> all{{"one", 1, 1, 1},  {"tp2", 1, 2, 1},       {"zero3", 1, 1, 3},
                                            {"pp4", 4, 1, 1},  {"tp2 zero2", 1, 2, 2}, {"pp2 tp2 zero2", 2, 2, 2},
                                            {"zero8", 1, 1, 8}};
    return all;
}

// What one rank holds, in memory of its own: every piece in rows with a gap between them, so that strides count.
class RankMemory {
public:
    RankMemory(const CutLayout& layout, int rank, const std::vector<NamedTensor>& tensors, bool filled) {
        const int d = rank % layout.dp, t = rank / layout.dp % layout.tp, stage = rank / layout.dp / layout.tp;
        for (std::size_t i = 0; i < tensors.size(); ++i)
            if (static_cast<int>(i) % layout.pp == stage)
                for (const Rect& r : shard(slice(extent(tensors[i].shape), layout.tp, t, i % 2 == 0), layout.dp, d))
                    add(tensors[i], r, filled);
    }
    const std::vector<TensorPiece>& pieces() const { return pieces_; }

    // Whether every element is the global tensor's, and every gap is as it was.
    bool equals(const std::vector<NamedTensor>& tensors) const {
        std::size_t i = 0;
        for (const TensorPiece& p : pieces_) {
            std::vector<std::byte> want(memory_[i].size(), std::byte{0xee});
            for (const NamedTensor& t : tensors)
                if (t.name == p.name) copy(t, p.rect(), want.data(), p.row_stride);
            if (want != memory_[i++]) return false;
        }
        return true;
    }

private:
    static Rect slice(const Rect& all, int tp, int t, bool columns) {
        if (all.rows == 1) return t == 0 ? all : Rect{0, 1, 0, 0};  // a vector is the first one's
        const std::int64_t size = columns ? all.cols : all.rows, begin = size * t / tp, end = size * (t + 1) / tp;
        return columns ? Rect{0, all.rows, begin, end - begin} : Rect{begin, end - begin, 0, all.cols};
    }
    static std::vector<Rect> shard(const Rect& slice, int dp, int d) {
        const auto border = [&](int i) { return i == dp ? slice.elements() : (slice.elements() * i / dp) / 7 * 7; };
        return flat_range(slice, border(d), border(d + 1) - border(d));
    }
    static void copy(const NamedTensor& t, const Rect& r, std::byte* out, std::int64_t stride) {
        const std::int64_t size = size_bytes(t.dtype), cols = extent(t.shape).cols;
        for (std::int64_t row = 0; row < r.rows; ++row)
            std::memcpy(out + row * stride * size, t.data + ((r.row + row) * cols + r.col) * size,
                        static_cast<std::size_t>(r.cols * size));
    }
    void add(const NamedTensor& t, const Rect& r, bool filled) {
        const std::int64_t stride = r.cols + 3;
        auto& bytes =
            memory_.emplace_back(static_cast<std::size_t>(r.rows * stride * size_bytes(t.dtype)), std::byte{0xee});
        if (filled) copy(t, r, bytes.data(), stride);
        pieces_.push_back({t.name, t.dtype, t.shape, r.row, r.rows, r.col, r.cols, bytes.data(), stride});
    }

    std::vector<std::vector<std::byte>> memory_;
    std::vector<TensorPiece> pieces_;
};

inline const CutLayout four{"tp2 zero2", 1, 2, 2};

// One matrix as a run would save it, and what the optimizer keeps of it.
inline OwnedTensors one_matrix(std::uint64_t seed, std::initializer_list<const char*> optimizer = {"embed.m"}) {
    OwnedTensors t;
    t.add("embed", Dtype::bf16, {50, 16}, seed);
    for (const char* kind : optimizer) t.add(kind, Dtype::f32, {50, 16}, seed);
    return t;
}

}  // namespace keel::test
