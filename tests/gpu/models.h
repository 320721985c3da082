// tests/gpu/models.h: the two shapes that the device check measures: one layer and the head of Llama-3.2-1B on 16 rows of 2048
// tokens, and of Llama-3.1-8B on one row of 8192.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/gpu/check.h"

namespace keel::gpu_check {

struct Shape {
    const char* name;
    std::int64_t rows, seq_len, hidden, heads, kv_heads, head_dim, ffn, vocab;

    std::int64_t tokens() const { return rows * seq_len; }
    std::int64_t q_size() const { return heads * head_dim; }
    std::int64_t kv_size() const { return kv_heads * head_dim; }
    std::int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
    std::int64_t head_tokens() const { return std::min<std::int64_t>(tokens(), 8192); }  // of a chunk of the output layer
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
};
inline Shape small_model(bool tiny) {
    return tiny ? Shape{"1B", 2, 32, 32, 4, 2, 16, 48, 64} : Shape{"1B", 16, 2048, 2048, 32, 8, 64, 8192, 128256};
}
inline Shape large_model(bool tiny) {
    return tiny ? Shape{"8B", 1, 64, 64, 4, 2, 16, 96, 64} : Shape{"8B", 1, 8192, 4096, 32, 8, 128, 14336, 128256};
}

// Where tokens stand in their rows, the first key that each sees (positions count through all rows, as attention does), and
// ids of a vocabulary. With `documents` the row is cut into as many, of uneven lengths.
struct Places {
    std::vector<std::int32_t> positions, lo, ids;
};
inline Places places(const Shape& m, std::int64_t documents = 0) {
    Places p;
    std::int64_t begin = 0, left = documents, next = documents > 0 ? 0 : m.seq_len;
    for (std::int64_t i = 0; i < m.tokens(); ++i) {
        if (i == next) {
            begin = i;
            next += m.seq_len;
            if (documents > 0) {  // lengths rise and fall around the mean
                const std::int64_t mean = (m.tokens() - i) / std::max<std::int64_t>(left, 1);
                next = --left > 0 ? i + std::max<std::int64_t>(mean + (left % 2 ? mean / 2 : -mean / 2), 1) : m.tokens();
            }
        }
        p.positions.push_back(static_cast<std::int32_t>(i - begin));
        p.lo.push_back(static_cast<std::int32_t>(begin));
        p.ids.push_back(static_cast<std::int32_t>(i * 7919 % m.vocab));
    }
    return p;
}

// The same in the device's memory.
struct DevicePlaces {
    Buffer<std::int32_t> positions, lo, ids;
    double seen = 0;  // keys, over all tokens
    DevicePlaces(const Check& c, const Places& p)
        : positions(c, 1, std::ssize(p.lo), true), lo(c, 1, std::ssize(p.lo), true), ids(c, 1, std::ssize(p.lo), true) {
        positions.set(*c.stream, p.positions);
        lo.set(*c.stream, p.lo);
        ids.set(*c.stream, p.ids);
        for (std::size_t i = 0; i < p.lo.size(); ++i) seen += static_cast<double>(i + 1) - p.lo[i];
    }
};

}  // namespace keel::gpu_check
