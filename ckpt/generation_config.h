// ckpt/generation_config.h: which tokens end a text that a model writes. A folder says so in generation_config.json, with one id
// or a list of them (chat models have several), else in its config.json; keel takes nothing else from the former.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace keel {

// Of a model folder, or of a checkpoint that came from one; empty where neither file says anything. Throws Error that names the
// file if an id is no id of a vocabulary of `vocab`.
std::vector<std::int32_t> ending_ids(const std::filesystem::path& folder, std::int64_t vocab);

}  // namespace keel
