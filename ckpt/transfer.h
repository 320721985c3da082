// ckpt/transfer.h: a checkpoint's files sent from rank to rank. Between the sources of ckpt only.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "ckpt/checkpoint.h"
#include "comm/group.h"

namespace keel {

// Sends `mine` to `to` and writes what `from` sends under `root`, both at once; either side may be absent (-1). What
// arrives is published once every file has the size and hash that its sender's manifest has.
//
// Every rank of a transfer plays it to its end, so that no peer waits for one that failed: a sender that cannot read
// sends what it has, which the receiver's hash refuses. Returns why this rank failed, or "".
std::string transfer(Group& group, const std::optional<CheckpointInfo>& mine, int to, const std::filesystem::path& root,
                     int from);

}  // namespace keel
