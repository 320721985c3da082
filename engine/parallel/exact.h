// engine/parallel/exact.h: gradients summed as integers, so that no order of summation exists (--numerics.grad_sum exact).
//
// Backward forms the gradient of one sequence at a time, in float. Every element becomes an integer of its tensor's
// power-of-two scale and is added; integers add exactly, so the number of replicas, the size of a micro-batch and the order
// of ranks cannot change a bit. The sum is rounded to float once.
//
// A tensor's scale puts the largest element seen in the step before at 2^38 … 2^39: 2^-38 of it is the finest step, far below
// what a float keeps of all but the smallest elements, and nearly 2^23 such addends fit; with more of them the finest
// step is coarser. What was largest is a maximum over all
// sequences, which no layout changes either; a checkpoint carries the scales. If a step's largest does not fit, or there was
// no step before, the step is run again with scales of its own. docs/numerics.md tells what it costs.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/group.h"
#include "engine/memory/backend.h"
#include "engine/model/params.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

class ExactSums {
public:
    struct Buffers {
        View<std::int64_t> sums;     // [flat_size]
        View<float> largest;         // [parameters of the whole model]
        View<std::int64_t> limbs;    // [3 * parameters of the whole model]
    };
    static constexpr int unknown = 1 << 20;  // no scale yet

    // `whole_index`: of each parameter of `params`, its number in the whole model. Everything must outlive it.
    ExactSums(const Backend& backend, const ParamTable& params, const std::vector<int>& whole_index, const Buffers& buffers);

    void begin();                                      // of a step, or of running it again
    void add(int param, View<const float> gradient);   // what one sequence gives, one of its two uses if it is tied
    // All sequences were added: agrees with all ranks on what was largest. False: scales were wrong, and are right now; the
    // step must be run again. `addends` bounds how many were added to one element.
    bool fits(Group& world, std::int64_t addends);
    bool finite() const;                               // whether every gradient that was added is
    void read(const ShardPiece& piece, View<float> gradient);  // the sum of a piece, rounded once
    void advance();                                    // chooses the next step's scales

    // Square root of the sum of squares of what `gradient` holds of each piece that `counts`. The same bits for any layout.
    template <class Counts> double norm(Group& world, View<const float> gradient, Counts counts) {
        measure_begin();
        for (const ShardPiece& piece : params_.owned)
            if (counts(piece)) measure(piece, gradient);
        if (!measure_end(world)) return std::nan("");
        for (const ShardPiece& piece : params_.owned)
            if (counts(piece)) square(piece, gradient);
        return total(world);
    }

    View<std::int64_t> sums() const { return b_.sums; }
    const std::vector<int>& scales() const { return scales_; }  // by number in the whole model
    void set_scales(const std::vector<int>& scales) { scales_ = scales; }

private:
    void measure_begin();
    void measure(const ShardPiece& piece, View<const float> gradient);
    void agree_on_largest(Group& world);
    bool measure_end(Group& world);  // false: one of them is not finite
    void square(const ShardPiece& piece, View<const float> gradient);
    double total(Group& world);
    std::size_t whole(int param) const { return static_cast<std::size_t>(whole_index_[static_cast<std::size_t>(param)]); }

    Backend backend_;
    Stream& stream_;  // the backend's
    const ParamTable& params_;
    const std::vector<int>& whole_index_;
    Buffers b_;
    std::vector<int> scales_, next_, square_scales_;
    std::vector<float> largest_;        // of all ranks, as the host has it
    std::vector<std::int64_t> limbs_;
    bool finite_ = true;
};

}  // namespace keel
