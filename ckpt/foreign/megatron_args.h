// ckpt/foreign/megatron_args.h: the shape of a model from the arguments that Megatron-LM keeps in its checkpoints.
#pragma once

#include <cstdint>

#include "ckpt/foreign/torch_file.h"
#include "ckpt/foreign_model.h"

namespace keel {

struct MegatronArgs {
    ModelShape shape;  // its vocab without padding, where the real size is known
    bool interleaved = false;  // rotary pairs are neighbours
    std::int64_t iteration = 0;
};

// `file` holds "args"; the embedding has `padded_vocab` rows of `dtype`. Refuses mathematics that keel has not, by the
// argument's name, and checkpoints without arguments.
MegatronArgs read_megatron_args(const TorchFile& file, StoredDtype dtype, std::int64_t padded_vocab, std::int64_t tp, const ForeignOptions& options);

}  // namespace keel
