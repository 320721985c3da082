#include "engine/observe/flops.h"

namespace keel {

Flops::Flops(const ModelSection& m) {
    const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
    const std::int64_t layer = m.hidden * (q + 2 * kv) + q * m.hidden + 3 * m.hidden * m.ffn;
    per_token = 6.0 * (static_cast<double>(m.layers) * static_cast<double>(layer) +
                       static_cast<double>(m.hidden) * static_cast<double>(m.vocab));
    per_square = 6.0 * static_cast<double>(m.layers) * static_cast<double>(q);  // 3 * 2 * (q + q) / 2
}

}  // namespace keel
