// kernels/base/file_faults.h: for tests: makes any step of kernels/base/file.h fail as a full or broken disk would.
//
// While a FileFaults lives, its function is asked before every step, on whatever thread takes it, and answers with the errno
// the step fails with, or 0 to let it happen. It may also end the process, as a kill at exactly that moment would. Outside
// of tests nothing is ever set, and asking costs one load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace keel {

enum class FileStep : std::uint8_t {
    create,  // a new file, by its name
    write,   // one block, before it reaches the file
    sync,    // fsync of a file or of a folder
    rename,  // by the name that is to appear
};

class FileFaults {
public:
    using Decide = std::function<int(FileStep, const std::filesystem::path&)>;
    explicit FileFaults(Decide decide);  // one at a time
    ~FileFaults();
    FileFaults(const FileFaults&) = delete;
    FileFaults& operator=(const FileFaults&) = delete;

private:
    Decide decide_;
};

// Whether the step is to fail now; errno is then set.
bool file_fault(FileStep step, const std::filesystem::path& path);

}  // namespace keel
