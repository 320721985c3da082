// engine/model/layout.h: what a model reserves from the memory plan, and the Views it gets back from the arena.
//
// The reservations are made without allocating anything, so `keel estimate` runs exactly this code. A recompute policy is
// nothing but lives: a member of BlockSaved that is kept lives from its forward to its backward; one that is not gets two
// short lives, one in forward and one in backward, and shares its memory with every other block.
#pragma once

#include <vector>

#include "engine/memory/arena.h"
#include "engine/memory/plan.h"
#include "engine/model/block.h"
#include "engine/model/params.h"
#include "engine/model/timeline.h"

namespace keel {

Recompute recompute_policy(const std::string& name);
BlockDims block_dims(const ModelSection& model);

// What a model is built for. `training` false: forward only, no gradients, no optimizer.
struct ModelUse {
    std::int64_t tokens;      // of one micro-batch
    std::int64_t positions;   // length of the rope table: tokens of one sample
    std::int64_t head_chunk;  // tokens per chunk of the output layer
    Recompute recompute = Recompute::none;
    bool training = true;
};
// 0 chooses: as many tokens as keep the chunk's logits within a few MiB, in multiples of 64.
std::int64_t head_chunk(std::int64_t asked, std::int64_t tokens, std::int64_t vocab);

template <class T> struct BlockReserved {
    Reserved<T> in, attn_norm, qkv, qk, att, mid, ffn_norm, gate_up, act;
    Reserved<float> attn_rstd, q_rstd, k_rstd, lse, ffn_rstd;

    BlockSaved<T> bind(const Arena& arena, bool qk_norm) const;
};

// Of one block: `forward` and `backward` are the same reservations where the policy keeps them.
template <class T> struct BlockLayout {
    BlockReserved<T> forward, backward;
    Reserved<T> branch, next_delta, branch_recompute;
    Reserved<T> dact, dnorm, datt, dqkv;
    Reserved<std::byte> attention_scratch, norm_scratch;
};

template <class T> struct ModelLayout {
    ModelLayout(MemoryPlan& plan, const ModelSection& model, const ModelUse& use);

    ParamTable params;
    ModelUse use;
    BlockDims dims;
    Reserved<T> param;
    Reserved<float> master, m, v, grad;    // master only for bf16
    Reserved<float> rope;
    std::vector<BlockLayout<T>> blocks;
    Reserved<T> dh;
    // The head: final norm, chunks of logits, losses.
    Reserved<T> final_in, final_norm, dfinal, dlogits;
    Reserved<float> final_rstd, logits, max, sum, target, loss;
    Reserved<std::byte> head_norm_scratch, reduce_scratch;
    Reserved<double> total;
};

}  // namespace keel
