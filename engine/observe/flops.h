// engine/observe/flops.h: floating-point operations of useful work, from shapes alone.
//
//     FLOPs = per_token * T + per_square * S2,   T = ΣL real tokens, S2 = ΣL² over documents
//
// Counted: every product of a matrix (2 per multiply-add), times 3 (forward, gradient of the input, of the weight), and
// the causal half of attention. Not counted: recomputation, padding, the embedding lookup, norms, softmax, rotary
// positions, biases, the optimizer. A sliding window is not discounted: it is a property of the model, and one number
// per shape lets runs be compared; with windows much shorter than documents the count is an upper bound.
// The output matrix counts whether it is tied or not: the product is computed either way.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config.h"
#include "engine/progress.h"

namespace keel {

struct Flops {
    double per_token = 0;   // of one training step: 6 per weight that multiplies a token
    double per_square = 0;  // 6 * heads * head_dim per layer

    Flops() = default;
    explicit Flops(const ModelSection& model);  // resolved
    // Of a rank that holds `layers` of the blocks, and the head or not, and does a `ways`-th of what they cost.
    static Flops share(const ModelSection& model, std::int64_t layers, bool head, std::int64_t ways);

    double of(std::int64_t tokens, std::int64_t tokens_squared) const {
        return per_token * static_cast<double>(tokens) + per_square * static_cast<double>(tokens_squared);
    }
    double of(const Progress& progress) const { return of(progress.tokens, progress.tokens_squared); }
    double of(const StepResult& step) const { return of(step.tokens, step.tokens_squared); }
    // "39642464256 per token + 786432 per squared length of a document"
    std::string formula() const;
    // Per token of a document of `length` tokens.
    double at_length(std::int64_t length) const { return per_token + per_square * static_cast<double>(length); }
};

}  // namespace keel
