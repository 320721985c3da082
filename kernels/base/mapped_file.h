// kernels/base/mapped_file.h: the bytes of a file, mapped read-only. Owns the mapping; every span it hands out dies
// with it.
//
// Nothing is read until a page is touched, so a file larger than memory is fine. A process that truncates the file
// while it is mapped kills its readers (SIGBUS): keel replaces files by rename only, and so never does that to its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace keel {

class MappedFile {
public:
    explicit MappedFile(std::filesystem::path path);  // throws Error with the path and the system's reason
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;

    std::span<const std::byte> bytes() const { return {data_, size_}; }
    std::int64_t size_bytes() const { return static_cast<std::int64_t>(size_); }
    const std::filesystem::path& path() const { return path_; }

    void expect_random() const;  // a hint to the kernel; no effect on what is read

private:
    void unmap() noexcept;

    std::filesystem::path path_;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace keel
