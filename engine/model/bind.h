// engine/model/bind.h: from a configuration and flat buffers to the arguments that the blocks take.
#pragma once

#include <string>

#include "engine/config.h"
#include "engine/memory/backend.h"
#include "engine/model/block.h"
#include "engine/model/params.h"
#include "kernels/rope.h"

namespace keel {

// Of a table of so many positions: longrope has two sets of frequencies.
RopeConfig rope_config(const ModelSection& model, std::int64_t positions);
// The table, in the backend's memory.
void make_rope_table(const Backend& backend, const RopeConfig& rope, View<float> table);

template <class T> BlockParams<T> block_params(const ParamTable& table, View<T> flat, int i, const ModelSection& m) {
    const auto at = [&](const char* name) { return View<const T>(table.view(flat, "layers." + std::to_string(i) + "." + name)); };
    BlockParams<T> p{.attn_norm = at("attn_norm"), .qkv = at("qkv"), .out = at("out"), .ffn_norm = at("ffn_norm"),
                     .gate_up = at("gate_up"), .down = at("down"), .qkv_bias = {}, .q_norm = {}, .k_norm = {}};
    if (m.qkv_bias) p.qkv_bias = at("qkv_bias");
    if (m.qk_norm) p.q_norm = at("q_norm"), p.k_norm = at("k_norm");
    return p;
}

BlockGrads block_grads(const ParamTable& table, View<float> flat, int i, const ModelSection& m);

}  // namespace keel
