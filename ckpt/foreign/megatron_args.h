// ckpt/foreign/megatron_args.h: the shape of a model from the arguments that Megatron-LM keeps in its checkpoints.
#pragma once

#include <cstdint>

#include "ckpt/foreign/torch_file.h"
#include "ckpt/foreign_model.h"

namespace keel {

struct MegatronArgs {
    ModelShape shape;  // its vocab without padding, where the real size is known
    std::int64_t padded_vocab = 0;
    bool interleaved = false;  // rotary pairs are neighbours
};

// `first` is the table of the first stage's first rank, whose embedding tells the padded size. Refuses mathematics that
// keel has not, by the argument's name, and checkpoints without arguments.
MegatronArgs read_megatron_args(const TorchFile& file, const TensorTable& first, std::int64_t tp, const ForeignOptions& options);

}  // namespace keel
