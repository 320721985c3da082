// engine/fault/run_lock.h: one process trains in a run's folder at a time.
//
// Two would mix their lines in one log, and delete each other's checkpoints as too old. The lock is the kernel's (flock), on
// a hidden file of the folder: it ends with its process however that ends, so nothing is ever left to be cleaned up. What
// the file says, the owner's process number, is for the message only. Over NFS it holds across machines.
#pragma once

#include <filesystem>

namespace keel {

class RunLock {
public:
    // Makes the folder if it is missing. Throws if another process holds it, or if it cannot be written.
    explicit RunLock(const std::filesystem::path& run_dir);
    ~RunLock();
    RunLock(const RunLock&) = delete;
    RunLock& operator=(const RunLock&) = delete;

private:
    int fd_ = -1;
};

}  // namespace keel
