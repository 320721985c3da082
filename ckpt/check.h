// ckpt/check.h: everything that can be said against a checkpoint without a model: hashes, coverage, values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_tensors.h"

namespace keel {

struct CheckpointCheck {
    std::vector<std::string> problems;  // sentences; none: it is good
    std::int64_t step = -1;
    std::string state;  // the text of state.json; "" if it cannot be trusted
    std::int64_t files = 0, bytes = 0, elements = 0, not_finite = 0;
    struct Tensor {
        std::string name;
        StoredDtype dtype;
        std::vector<std::int64_t> shape;
    };
    std::vector<Tensor> tensors;  // global ones, by name
};

// Reads every byte once, through one block. Does not stop at the first problem, and does not throw for what is wrong
// with the checkpoint. `coverage` part is for one rank's part of a local checkpoint (ckpt/local_checkpoints.h).
CheckpointCheck check_checkpoint(const std::filesystem::path& path,
                                 CheckpointTensors::Coverage coverage = CheckpointTensors::Coverage::whole);

// Values among `count` elements that are infinite or no number; 0 for whole numbers and for types without either.
std::int64_t count_not_finite(StoredDtype dtype, const std::byte* x, std::int64_t count);

}  // namespace keel
