#include "engine/model_shape.h"

namespace keel {

ParameterCount parameter_count(const ModelSection& m) {
    const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
    ParameterCount count;
    count.embedding = m.vocab * m.hidden;
    count.attention = m.layers * (m.hidden * (q + 2 * kv) + q * m.hidden + (m.qkv_bias ? q + 2 * kv : 0));
    count.ffn = m.layers * 3 * m.hidden * m.ffn;
    count.norms = m.layers * (2 * m.hidden + (m.qk_norm_whole ? q + kv : m.qk_norm ? 2 * m.head_dim : 0)) + m.hidden;
    count.head = m.tied ? 0 : m.vocab * m.hidden;
    return count;
}

std::int64_t rotary_dim(const ModelSection& m) {
    return static_cast<std::int64_t>(static_cast<double>(m.head_dim) * m.rope_fraction);
}

}  // namespace keel
