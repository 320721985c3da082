#include "engine/observe/flops.h"

#include "engine/observe/print.h"

namespace keel {

Flops::Flops(const ModelSection& m) : Flops(share(m, m.layers, true, 1)) {}

Flops Flops::share(const ModelSection& m, std::int64_t layers, bool head, std::int64_t ways) {
    const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
    const std::int64_t layer = m.hidden * (q + 2 * kv) + q * m.hidden + 3 * m.hidden * m.ffn;
    const auto parts = static_cast<double>(ways);
    Flops out;
    out.per_token = 6.0 * (static_cast<double>(layers) * static_cast<double>(layer) +
                           (head ? static_cast<double>(m.hidden) * static_cast<double>(m.vocab) : 0.0)) / parts;
    out.per_square = 6.0 * static_cast<double>(layers) * static_cast<double>(q) / parts;  // 3 * 2 * (q + q) / 2
    return out;
}

std::string Flops::formula() const {
    return print("%.0f per token + %.0f per squared length of a document", per_token, per_square);
}

}  // namespace keel
