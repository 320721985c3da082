// tests/engine/tiny.h: a model small enough for any test, and batches for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/token_file.h"
#include "data/token_writer.h"
#include "engine/config.h"
#include "engine/config_check.h"
#include "engine/model/model.h"
#include "kernels/base/random.h"
#include "tests/temp_folder.h"

namespace keel::test {

inline Config tiny_config(const std::string& dtype = "f32") {
    Config c;
    c.model.dtype = dtype;
    c.model.vocab = 61, c.model.hidden = 32, c.model.layers = 3, c.model.heads = 4, c.model.kv_heads = 2;
    c.model.head_dim = 8, c.model.ffn = 40, c.model.init_std = 0.2;
    c.data.seq_len = 24;
    c.train.micro_batch = 2, c.train.global_batch = 4, c.train.steps = 20;
    c.optim.lr = 1e-2;
    return c;
}

// Random tokens in documents of random lengths, some of length 1.
struct TinyBatch {
    std::vector<std::int32_t> ids, labels, positions, lo;
    std::int64_t loss_tokens = 0;

    TinyBatch(const Config& c, std::int64_t samples, std::uint64_t seed) {
        const Random random(seed, Purpose::test, "batch");
        const std::int64_t n = samples * c.data.seq_len;
        std::int64_t begin = 0;
        for (std::int64_t i = 0; i < n; ++i) {
            const auto index = static_cast<std::uint64_t>(i);
            if (i % c.data.seq_len == 0 || random.uniform(3 * index) < 0.15) begin = i;
            ids.push_back(static_cast<std::int32_t>(random.uniform(3 * index + 1) * static_cast<double>(c.model.vocab)));
            const bool last = random.uniform(3 * index + 2) < 0.1;
            labels.push_back(last ? -1 : static_cast<std::int32_t>((ids.back() * 7 + 3) % c.model.vocab));
            loss_tokens += last ? 0 : 1;
            positions.push_back(static_cast<std::int32_t>(i - begin));
            lo.push_back(static_cast<std::int32_t>(
                c.model.window > 0 ? std::max(begin, i - c.model.window + 1) : begin));
        }
    }
    Batch batch() const {
        const auto view = [](const std::vector<std::int32_t>& x) {
            return View<const std::int32_t>(x.data(), {static_cast<std::int64_t>(x.size())});
        };
        return {.ids = view(ids), .labels = view(labels), .positions = view(positions), .lo = view(lo),
                .loss_tokens = loss_tokens, .sum_len = 0, .sum_len_sq = 0, .first_sample = 0, .count = 0};
    }
};

// Documents of random tokens with some structure to learn; `seed` makes different files.
inline void write_token_file(const std::filesystem::path& path, std::int64_t vocab, std::int64_t tokens, std::uint64_t seed,
                             std::uint64_t tokenizer_hash = 77) {
    TokenFileInfo info;
    info.vocab_size = vocab;
    info.tokenizer_hash = tokenizer_hash;
    info.eos_id = 0;
    TokenFileWriter writer(path, info);
    const Random random(seed, Purpose::test, "tokens");
    std::int32_t id = 1;
    for (std::int64_t i = 0; i < tokens; ++i) {
        const double u = random.uniform(static_cast<std::uint64_t>(i));
        id = static_cast<std::int32_t>(u < 0.3 ? u / 0.3 * static_cast<double>(vocab) : static_cast<double>((id * 5 + 1) % vocab));
        writer.append({&id, 1});
        if (u > 0.97) writer.end_document();
    }
    writer.finish();
}

}  // namespace keel::test
