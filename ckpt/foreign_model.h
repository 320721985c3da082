// ckpt/foreign_model.h: checkpoints of other systems, recognised so that whoever has one is told the way from it to a
// model folder. keel reads none of them: most are pickles, which run code when they are opened, or other architectures.
#pragma once

#include <filesystem>
#include <string>

namespace keel {

// What lies at `path`, a file or a folder, and what to do with it, in a sentence; "" if nobody here
// knows it.
std::string foreign_model(const std::filesystem::path& path);

}  // namespace keel
