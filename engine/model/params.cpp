#include "engine/model/params.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/random.h"

namespace keel {
namespace {

constexpr double ones = -1, zeros = 0;

// Whole parameters in the order of the forward pass, each cut as `shard` says.
class Builder {
public:
    Builder(const ModelSection& model, const Shard& shard) : m_(model), s_(shard) {}

    std::vector<Param> build() {
        const double std = m_.init_std;
        // Two projections of every layer write to the residual stream: its variance stays put if each is this much smaller.
        const double residual_std = m_.init_std / std::sqrt(2.0 * static_cast<double>(m_.layers));
        const std::int64_t q = m_.heads * m_.head_dim, kv = m_.kv_heads * m_.head_dim, h = m_.hidden, f = m_.ffn;
        // With the residual stream cut by tokens, a gain's gradient is summed over the ranks' tokens.
        const Held gain = s_.tp == 1 ? Held::cut : s_.sequence ? Held::partial : Held::same;
        const Held head_gain = s_.tp == 1 ? Held::cut : Held::partial;  // each rank has heads of its own

        for (std::size_t chunk = 0; chunk < s_.chunks.size(); ++chunk) {
            const LayerRange& range = s_.chunks[chunk];
            chunk_ = static_cast<int>(chunk);
            if (range.embedding) add_vocab("embed", std, false);
            for (int i = range.begin; i < range.end; ++i) {
                const std::string layer = "layers." + std::to_string(i) + ".";
                add_vector(layer + "attn_norm", h, ones, gain);
                add_rows(layer + "qkv", {q, kv, kv}, h, std);
                if (m_.qkv_bias) add_rows(layer + "qkv_bias", {q, kv, kv}, 0, zeros);
                if (m_.qk_norm_whole) {  // each rank has the gains of its own heads
                    add_rows(layer + "q_norm", {q}, 0, ones);
                    add_rows(layer + "k_norm", {kv}, 0, ones);
                } else if (m_.qk_norm) {
                    add_vector(layer + "q_norm", m_.head_dim, ones, head_gain);
                    add_vector(layer + "k_norm", m_.head_dim, ones, head_gain);
                }
                add_columns(layer + "out", h, q, residual_std);
                add_vector(layer + "ffn_norm", h, ones, gain);
                add_rows(layer + "gate_up", {f, f}, h, std);
                add_columns(layer + "down", h, f, residual_std);
            }
            if (!range.head) continue;
            add_vector("final_norm", h, ones, gain);
            if (!m_.tied) add_vocab("head", std, false);
            else if (s_.stages > 1) add_vocab("embed", std, true);
        }
        return std::move(params_);
    }

private:
    void add(Param p) {
        p.chunk = chunk_;
        params_.push_back(std::move(p));
    }
    void add_vector(std::string name, std::int64_t n, double init, Held held) {
        add({.name = std::move(name), .shape = {n}, .init_std = init, .whole = {n}, .rows = {{0, 0, n}}, .held = held});
    }
    // Stacked matrices, each cut by rows: q, k and v; gate and up. A bias has no columns.
    void add_rows(std::string name, std::vector<std::int64_t> stacked, std::int64_t columns, double init) {
        Param p{.name = std::move(name), .shape = {0}, .init_std = init, .whole = {0}, .rows = {}};
        for (const std::int64_t rows : stacked) {
            const std::int64_t part = rows / s_.tp;
            p.rows.push_back({p.shape[0], p.whole[0] + s_.tp_rank * part, part});
            p.shape[0] += part, p.whole[0] += rows;
        }
        if (columns > 0) p.shape.push_back(columns), p.whole.push_back(columns);
        add(std::move(p));
    }
    void add_columns(std::string name, std::int64_t rows, std::int64_t columns, double init) {
        const std::int64_t part = columns / s_.tp;
        add({.name = std::move(name), .shape = {rows, part}, .init_std = init, .whole = {rows, columns}, .rows = {{0, 0, rows}},
             .column = s_.tp_rank * part});
    }
    void add_vocab(std::string name, double init, bool copy) {
        const VocabRange v = s_.vocab;
        add({.name = std::move(name), .shape = {v.size(), m_.hidden}, .init_std = init, .whole = {m_.vocab, m_.hidden},
             .rows = {{0, v.begin, v.size()}}, .copy = copy});
    }

    const ModelSection& m_;
    const Shard& s_;
    int chunk_ = 0;
    std::vector<Param> params_;
};

// Initial value of a flattened local element.
double initial(const Param& p, const Random& random, std::int64_t i) {
    if (p.init_std < 0) return 1.0;
    if (p.init_std == 0) return 0.0;
    const std::int64_t row = i / p.columns(), column = p.column + i % p.columns();
    for (const RowPart& part : p.rows)
        if (row < part.local + part.rows) {
            const std::int64_t global = (part.global + row - part.local) * p.whole_columns() + column;
            return p.init_std * random.normal(static_cast<std::uint64_t>(global));
        }
    fail("params: row ", row, " of " + p.name + " is in none of its parts");
}

constexpr std::int64_t tile = 1 << 14;

// Calls put(element of p, initial value) for elements [begin, begin + count) of p.
template <class Put>
void draw(Stream& stream, const Param& p, std::uint64_t seed, std::int64_t begin, std::int64_t count, Put put) {
    const Random random(seed, Purpose::init, p.name);
    stream.parallel(ceil_div(count, tile), [&](std::int64_t t, int) {
        for (std::int64_t i = t * tile; i < std::min(count, (t + 1) * tile); ++i)
            put(begin + i, static_cast<float>(initial(p, random, begin + i)));
    });
}

}  // namespace

Shard whole_model(const ModelSection& m) {
    return {.vocab = {0, m.vocab}, .chunks = {{0, static_cast<int>(m.layers), true, true}}};
}

ParamTable::ParamTable(const ModelSection& model) : ParamTable(model, whole_model(model), 0) {}

ParamTable::ParamTable(const ModelSection& model, const Shard& shard, std::int64_t bucket_size)
    : specs(Builder(model, shard).build()) {
    std::vector<BucketParam> params;
    // The vocabulary may not come out even over tensor-parallel ranks. The head, laid out first, has a bucket of its own then,
    // so that these ranks close the others alike: they sum the gains of a bucket together.
    for (const Param& p : specs)
        params.push_back({.numel = p.size(), .shared = (model.tied && shard.stages > 1 && p.name == "embed") || (shard.tp > 1 && p.name == "head")});
    buckets = bucket_layout(params, {.ranks = shard.replicas, .bucket_size = bucket_size, .sharded = true});
    for (std::size_t i = 0; i < specs.size(); ++i) specs[i].offset = buckets.offset[i];
    flat_size = buckets.size;
    owned = shard_pieces(buckets, shard.replica);
    owned_size = buckets.owned();
}

std::int64_t ParamTable::count() const {
    std::int64_t n = 0;
    for (const Param& s : specs) n += s.size();
    return n;
}

const Param& ParamTable::at(const std::string& name) const {
    const auto it = std::find_if(specs.begin(), specs.end(), [&](const Param& s) { return s.name == name; });
    if (it == specs.end()) fail("model has no parameter \"" + name + "\"");
    return *it;
}

bool ParamTable::has(const std::string& name) const {
    return std::ranges::any_of(specs, [&](const Param& s) { return s.name == name; });
}

template <class T> void init_params(Stream& stream, const ParamTable& table, std::uint64_t seed, View<T> param) {
    for (const Param& p : table.specs)
        draw(stream, p, seed, 0, p.size(), [&](std::int64_t i, float value) { param[p.offset + i] = static_cast<T>(value); });
}

void init_owned(Stream& stream, const ParamTable& table, std::uint64_t seed, View<float> master) {
    for (const ShardPiece& piece : table.owned)
        draw(stream, table.specs[static_cast<std::size_t>(piece.param)], seed, piece.in_param, piece.size,
             [&](std::int64_t i, float value) { master[piece.in_owned + i - piece.in_param] = value; });
}

template void init_params<float>(Stream&, const ParamTable&, std::uint64_t, View<float>);
template void init_params<bf16>(Stream&, const ParamTable&, std::uint64_t, View<bf16>);
template void init_params<f16>(Stream&, const ParamTable&, std::uint64_t, View<f16>);

}  // namespace keel
