// engine/bench/bench.h: what `keel bench` measures: the machine's ceilings, the ops of a step, and whole steps as a share.
//
// Contenders are measured in turns within one run, so that a neighbour on the machine slows all of them; each number is
// the median, with the best beside it. Inputs are random, never zeros. FLOPs are useful work only (observe/flops.h).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/memory/backend.h"
#include "engine/observe/matmul_peak.h"
#include "kernels/base/dtype.h"
#include "kernels/base/pages.h"
#include "kernels/base/random.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel::bench {

// Random elements in huge pages, where the arena of a run would have them.
template <class T> class Buffer {
public:
    Buffer(std::int64_t rows, std::int64_t cols, std::uint64_t seed = 3)
        : rows_(rows), cols_(cols), pages_(rows * cols * static_cast<std::int64_t>(sizeof(T))) {
        // Drawing is slow, and values do not matter beyond not being special: a block is drawn and repeated.
        const Random random(seed, Purpose::test, "bench");
        constexpr std::int64_t block = 4093;
        T* x = data();
        for (std::int64_t i = 0; i < rows * cols; ++i)
            x[i] = i < block ? static_cast<T>(static_cast<float>(random.uniform(static_cast<std::uint64_t>(i)) - 0.5)) : x[i - block];
    }
    T* data() const { return reinterpret_cast<T*>(pages_.data()); }
    View<T> view() const { return View<T>(data(), {rows_, cols_}); }
    View<T> flat() const { return View<T>(data(), {rows_ * cols_}); }

private:
    std::int64_t rows_, cols_;
    Pages pages_;
};

struct Sample {
    double median_s = 0, best_s = 0;
};

// Calls every body in turn, `rounds` times after one turn to warm up.
std::vector<Sample> measure(const std::vector<std::function<void()>>& bodies, int rounds);

struct Peaks {
    double fma_f32 = 0;                     // FLOP/s of fused multiply-adds on registers: what no product can pass
    struct Product {
        double rate = 0;                    // FLOP/s, the best over large products
        std::int64_t n = 0;                 // its size: n x n x n
    };
    std::array<Product, all_dtypes.size()> products{};  // by Dtype
    double copy = 0;                        // bytes/s, read plus written, far past the caches
    double matmul(const std::string& dtype) const { return product(dtype_named(dtype)).rate; }
    std::int64_t best(const std::string& dtype) const { return product(dtype_named(dtype)).n; }
    const Product& product(Dtype dtype) const { return products[static_cast<std::size_t>(dtype)]; }
};
Peaks measure_peaks(const Backend& backend);  // on a GPU without fma_f32

// The ceiling that steps are measured against, in turns with them: some milliseconds of products n x n x n.
std::unique_ptr<SquareProduct> ceiling(const Backend& backend, const std::string& dtype, std::int64_t n);

// One of the shapes that a step is judged on.
struct Case {
    std::string name;  // "a"
    Config config;     // resolved; one micro-batch is the whole step
};
// a: d=288 L=6 H=6 ffn=768 V=512 T=256 B=8; b: d=512 L=8 H=8 ffn=1376 V=8192 T=512 B=4;
// c: d=768 L=12 H=12 ffn=2048 V=32000 T=1024 B=1. Untied head, every row one document.
Case standard_case(const std::string& name, const std::string& dtype);
// Configuration b's model with `seq_len` tokens in a row, 4096 tokens a step: what attention costs as T grows.
Case length_case(std::int64_t seq_len, const std::string& dtype);

struct StepTime {
    Sample seconds;
    double ceiling_median = 0;   // FLOP/s of the machine's best matrix product of this dtype, measured in turns with the steps
    double ceiling_best = 0;
    double flops = 0;            // useful, of one step
    double tokens = 0;
    double attention_flops = 0;  // part of flops
    std::int64_t arena_bytes = 0;
};
// Whole steps: zero gradients, forward, backward, norm, clip, AdamW.
StepTime measure_step(const Backend& backend, const Case& c, const Peaks& peaks, int rounds);

// What a checkpoint behind the training costs it: as many steps while one is written, and then without.
struct SaveCost {
    std::int64_t bytes = 0;  // of the state
    double step_s = 0;       // without a save
    double stall_s = 0;      // of the snapshot, in which the training stands
    double write_s = 0;      // until it is published
    double extra_s = 0;      // that the steps beside it, and the snapshot, took longer, altogether
};
SaveCost measure_save(Stream& stream, Case c, const std::filesystem::path& root, int rounds);  // medians; writes under root

// One op at the shapes of a case, times how often a step calls it.
struct OpTime {
    std::string name;
    double calls = 0;
    Sample seconds;             // of one call
    double flops = 0, bytes = 0;  // useful, of one call; 0 where not meaningful
};
std::vector<OpTime> measure_ops(Stream& stream, const Case& c, int rounds);

}  // namespace keel::bench
