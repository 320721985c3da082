// tests/fuzz/memory_file.h: bytes under a path, without a disk, for parsers that open files.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

class MemoryFile {
public:
    MemoryFile(const std::uint8_t* data, std::size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
        for (std::size_t at = 0; fd_ >= 0 && at < size;) {
            const ssize_t put = ::write(fd_, data + at, size - at);
            if (put <= 0) std::abort();
            at += static_cast<std::size_t>(put);
        }
        if (fd_ < 0) std::abort();
    }
    ~MemoryFile() { ::close(fd_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

private:
    int fd_;
};
