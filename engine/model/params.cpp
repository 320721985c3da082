#include "engine/model/params.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/random.h"

namespace keel {
namespace {

constexpr std::int64_t align_elements = 32;  // 64 bytes of bf16, 128 of float: every tensor starts on a cache line

}  // namespace

ParamTable::ParamTable(const ModelSection& m) {
    const auto add = [this](std::string name, std::vector<std::int64_t> shape, double init_std) {
        Param spec{std::move(name), std::move(shape), flat_size, init_std};
        flat_size += ceil_div(spec.size(), align_elements) * align_elements;
        specs.push_back(std::move(spec));
    };
    constexpr double ones = -1, zeros = 0;
    const double std = m.init_std;
    // Two projections of every layer write to the residual stream: its variance stays put if each is this much smaller.
    const double residual_std = m.init_std / std::sqrt(2.0 * static_cast<double>(m.layers));
    const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;

    add("embed", {m.vocab, m.hidden}, std);
    for (std::int64_t i = 0; i < m.layers; ++i) {
        const std::string layer = "layers." + std::to_string(i) + ".";
        add(layer + "attn_norm", {m.hidden}, ones);
        add(layer + "qkv", {q + 2 * kv, m.hidden}, std);
        if (m.qkv_bias) add(layer + "qkv_bias", {q + 2 * kv}, zeros);
        if (m.qk_norm) add(layer + "q_norm", {m.head_dim}, ones);
        if (m.qk_norm) add(layer + "k_norm", {m.head_dim}, ones);
        add(layer + "out", {m.hidden, q}, residual_std);
        add(layer + "ffn_norm", {m.hidden}, ones);
        add(layer + "gate_up", {2 * m.ffn, m.hidden}, std);
        add(layer + "down", {m.hidden, m.ffn}, residual_std);
    }
    add("final_norm", {m.hidden}, ones);
    if (!m.tied) add("head", {m.vocab, m.hidden}, std);
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

template <class T>
void init_params(Stream& stream, const ParamTable& table, std::uint64_t seed, View<float> master, View<T> param) {
    constexpr std::int64_t tile = 1 << 14;
    for (const Param& spec : table.specs) {
        const Random random(seed, Purpose::init, spec.name);
        stream.parallel(ceil_div(spec.size(), tile), [&](std::int64_t t, int) {
            for (std::int64_t i = t * tile; i < std::min(spec.size(), (t + 1) * tile); ++i) {
                const double value = spec.init_std < 0 ? 1.0
                                     : spec.init_std == 0
                                         ? 0.0
                                         : spec.init_std * random.normal(static_cast<std::uint64_t>(i));
                master[spec.offset + i] = static_cast<float>(value);
                param[spec.offset + i] = static_cast<T>(static_cast<float>(value));
            }
        });
    }
}

template void init_params<float>(Stream&, const ParamTable&, std::uint64_t, View<float>, View<float>);
template void init_params<bf16>(Stream&, const ParamTable&, std::uint64_t, View<float>, View<bf16>);

}  // namespace keel
