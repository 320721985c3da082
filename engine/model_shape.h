// engine/model_shape.h: counts that follow from a model's shape alone.
#pragma once

#include <cstdint>

#include "engine/config.h"

namespace keel {

struct ParameterCount {
    std::int64_t embedding = 0, attention = 0, ffn = 0, norms = 0, head = 0;  // head: 0 if tied
    std::int64_t total() const { return embedding + attention + ffn + norms + head; }
};

// `model` is resolved: head_dim and kv_heads are set.
ParameterCount parameter_count(const ModelSection& model);

// Elements of each head that are rotated.
std::int64_t rotary_dim(const ModelSection& model);

}  // namespace keel
