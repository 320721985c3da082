// ckpt/foreign/distributed.h: distributed checkpoints of PyTorch (torch.distributed.checkpoint): a folder of *.distcp files, in
// which each piece of a tensor is a file of torch.save of its own, and .metadata, a pickle that says which piece lies where.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/foreign/file_tensor.h"
#include "ckpt/foreign/torch_file.h"

namespace keel {

bool is_distributed_checkpoint(const std::filesystem::path& folder);

struct DistributedCheckpoint {
    struct Tensor {
        std::vector<std::int64_t> shape;
        struct Piece {
            std::vector<std::int64_t> offset;
            FileTensor tensor;
        };
        std::vector<Piece> pieces;
    };
    std::map<std::string, Tensor, std::less<>> tensors;
    std::vector<std::shared_ptr<TorchFile>> files;  // one per piece
};

// The tensors whose name `wanted` takes; others, such as an optimizer's, are not opened.
DistributedCheckpoint open_distributed(const std::filesystem::path& folder, const std::function<bool(std::string_view)>& wanted);

}  // namespace keel
