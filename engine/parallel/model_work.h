// engine/parallel/model_work.h: what a model asks of the devices that train it, counted from its shape, for the
// simulator. Like FLOPs, bytes are counted, not measured: each op of engine/model/block.cpp reads and writes each
// tensor once.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config.h"

namespace keel {

// Of one token on its way through one block (or the head), on one rank that shares it with nobody.
struct PassWork {
    double gemm_flops = 0;       // products with weights
    double attention_flops = 0;  // products of attention, as they are executed
    double split_bytes = 0;      // memory traffic outside of products, where tp divides it
    double row_bytes = 0;        // where tp divides it only with sequence parallelism: norms, the residual stream
    double weight_bytes = 0;     // of weights and their gradients, once per micro-batch
    double tp_passes = 0;        // all-gathers and reduce-scatters of the residual stream over tp; an all-reduce is two
    double cp_passes = 0;        // all-gathers and reduce-scatters of keys and values over cp
};

struct ModelWork {
    std::int64_t layers = 0;
    PassWork forward, again, backward;     // of a block; again: what recomputing adds to backward
    PassWork head_forward, head_backward;  // final norm, output layer, loss
    double block_parameters = 0, embedding_parameters = 0, head_parameters = 0;
    bool tied = false;                     // the head's parameters are a copy of the embedding's
    double hidden_bytes = 0;               // of one token of the residual stream
    double kv_bytes = 0;                   // of one token's keys and values
    double useful_flops = 0;               // per token of a step: what MFU counts
    double grad_bytes = 4, param_bytes = 2;  // that data-parallel ranks reduce and gather, per parameter
    double optimizer_bytes = 0;              // that the update moves, per parameter
};

// keel's own ops. `seq_len` is the length of a row, whole; a row is one document. `sequence`: norms and the residual
// stream are cut over tp.
ModelWork model_work(const ModelSection& model, std::int64_t seq_len, const std::string& recompute, bool sequence);

}  // namespace keel
