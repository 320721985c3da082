// engine/model/layout.h: what a model reserves from the memory plan, and the Views it gets back from the arena.
//
// The reservations are made without allocating anything, so `keel estimate` runs exactly this code. A recompute policy is
// nothing but lives: a member of BlockSaved that is kept lives from its forward to its backward; one that is not gets two
// short lives, one in forward and one in backward, and shares its memory with every other block.
//
// A pipeline keeps several micro-batches between their forward and their backward: everything kept exists once per slot
// (engine/parallel/pipeline.h), and a slot serves any chunk of the rank. Temporaries exist once.
#pragma once

#include <optional>
#include <vector>

#include "engine/memory/arena.h"
#include "engine/memory/plan.h"
#include "engine/model/block.h"
#include "engine/model/hash_slots.h"
#include "engine/model/params.h"
#include "engine/model/timeline.h"
#include "engine/parallel/layout.h"

namespace keel {

Recompute recompute_policy(const std::string& name);
BlockDims block_dims(const ModelSection& model, std::int64_t tp = 1);

// What a model is built for. `training` false: forward only, no gradients, no optimizer.
struct ModelUse {
    std::int64_t tokens;      // of one micro-batch, on this rank
    std::int64_t positions;   // length of the rope table: tokens of one whole sample
    std::int64_t head_chunk;  // tokens per chunk of the output layer
    Recompute recompute = Recompute::none;
    bool training = true;
    bool exact = false;       // gradients are summed as integers
    bool snapshot = false;    // checkpoints are written while training goes on
    int slots = 1;            // micro-batches under way at once
    int gradients = 1;        // buffers that backwards work in, in turns (engine/parallel/pipeline_run.h)
    std::int64_t micro_batches = 1;  // of a step, at most
    std::int64_t bucket = 0;  // gradient elements reduced together; 0 is all
    Device device = Device::cpu;
};
// 0 chooses: as many tokens as keep the chunk's logits within a few MiB, in multiples of 64.
std::int64_t head_chunk(std::int64_t asked, std::int64_t tokens, std::int64_t vocab);

template <class T> struct BlockReserved {
    Reserved<T> in, attn_norm, qkv, qk, att, mid, ffn_norm, gate_up, act;
    Reserved<float> attn_rstd, q_rstd, k_rstd, lse, ffn_rstd;

    BlockSaved<T> bind(const Arena& arena, bool qk_norm) const;
    BlockReserved or_else(const BlockReserved& other) const;  // members that are not reserved here come from `other`
};

// engine/parallel/context.h says what these are. Only those of one kind are reserved, or none.
template <class T> struct ContextReserved {
    Reserved<T> keys, values, staging, dkeys, dvalues, part_v;
    Reserved<T> slices, part, part_dk, part_dv;
    Reserved<float> sum, part_lse, dslices;

    std::optional<ContextBuffers<T>> bind(const Arena& arena) const;
};

// Of one block: what its policy does not keep, and temporaries.
template <class T> struct BlockLayout {
    BlockReserved<T> forward, backward;
    Reserved<T> branch, next_delta, branch_recompute;
    Reserved<T> dact, dnorm, datt, dqkv;
    Reserved<std::byte> attention_scratch, norm_scratch;
    Reserved<float> row_sums;
    // Between ranks, for forward and for backward: with sequence parallelism the rows of all ranks, with context parallelism
    // what its kind wants.
    struct Meeting {
        Reserved<T> whole_a, whole_b;  // [tokens, hidden]
        ContextReserved<T> context;
    } meet_forward, meet_ffn_forward, meet_backward, meet_ffn_backward;
};

// Of one slot.
template <class T> struct SlotLayout {
    std::vector<BlockReserved<T>> kept;   // by place in the chunk
    Reserved<T> out;                      // [rows, hidden]: the residual stream after the last block
    Reserved<T> final_norm;               // where the head is
    Reserved<float> final_rstd;
    Reserved<std::int32_t> batch;         // a copy of it, where one is needed (engine/model/batch_slots.h)
};

template <class T> struct ModelLayout {
    ModelLayout(MemoryPlan& plan, const ModelSection& model, const ModelUse& use, const Shard& shard);

    Shard shard;
    ParamTable params;
    ModelUse use;
    BlockDims dims;
    std::int64_t rows;  // of the residual stream: tokens, or this rank's share of them
    Reserved<T> param;
    Reserved<float> master, m, v, grad;    // master only for bf16 and f16
    Reserved<float> lookup_grad;           // of a tied embedding as an embedding; as a head it is in grad
    Reserved<std::int64_t> exact;          // integer sums of grad
    Reserved<std::byte> snapshot;          // of what this rank saves (ckpt/async_save.h); of a GPU it is on the host
    Reserved<float> rope;
    Reserved<T> whole_embed, whole_dembed; // [tokens, hidden]  with sequence parallelism, where the embedding is
    std::vector<BlockLayout<T>> blocks;    // of all chunks, in order
    std::vector<SlotLayout<T>> slots;
    std::vector<Reserved<T>> dh;           // [rows, hidden]: the gradient of the residual stream, all the way back
    // The head: chunks of logits, losses.
    Reserved<T> whole_norm, whole_dnorm, dfinal, dlogits;
    Reserved<float> logits, max, common, sum, target, loss;
    Reserved<std::byte> head_norm_scratch, reduce_scratch;
    Reserved<float> gains;                 // those that are summed over the tensor-parallel ranks, side by side
    Reserved<float> largest;               // with exact sums
    Reserved<std::int64_t> limbs;
    Reserved<double> numbers;              // what the host reads of a step (engine/model/step_numbers.h)
    HashSlots hashes;                      // behind losses and squares
    Reserved<std::byte> embed_scratch;     // on a GPU, as what follows
    Reserved<std::byte> products;          // what cuBLASLt works in (Stream::lend)
    Reserved<std::byte> peers, peers_beside;  // where others' parts of a sum arrive (Group::lend); of what goes on beside

    // A slice is cut out of the batch, and a batch that waits for its backward outlives the loader's.
    bool copies_batch() const { return shard.stages > 1 || shard.cp > 1 || use.slots > 1 || on_gpu(); }
    bool on_gpu() const { return use.device != Device::cpu; }
    std::int64_t snapshot_bytes() const;

private:
    void lend_to_groups(MemoryPlan& plan, const ModelSection& model);
};

}  // namespace keel
