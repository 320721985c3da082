// engine/memory/memory_left.h: how much this process may still allocate: what the machine has left, or its control group
// (a container, a Slurm job), whichever is less. Past it the kernel kills without a word, so it is asked before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace keel {

// Bytes; nullopt if the kernel does not say. Files in the page cache count as free: they go when memory is wanted. `root`
// is where /proc and /sys are looked for.
std::optional<std::int64_t> memory_left_bytes(const std::filesystem::path& root = "/");

}  // namespace keel
