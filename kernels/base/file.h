// kernels/base/file.h: files read at offsets, written in big blocks, and replaced whole or not at all.
//
// Every failure throws Error with the path, the number of bytes and the system's reason ("No space left on device").
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace keel {

// A file open for reading. Reads never move a shared position, so several threads may read one InputFile.
class InputFile {
public:
    explicit InputFile(std::filesystem::path path);
    ~InputFile();
    InputFile(InputFile&& other) noexcept;
    InputFile& operator=(InputFile&& other) = delete;

    std::int64_t size_bytes() const { return size_bytes_; }
    const std::filesystem::path& path() const { return path_; }

    // Fills `out` from byte `offset` on; a file that ends first is an error.
    void read_at(std::int64_t offset, std::span<std::byte> out) const;

private:
    std::filesystem::path path_;
    int fd_ = -1;
    std::int64_t size_bytes_ = 0;
};

// A new file, written front to back through one aligned block of 8 MiB. Blocks go past the page cache where the file
// system allows it: on a virtual machine that is several times faster than pages which the host must first supply. The
// destructor closes and leaves the file as it is; only close() reports, and only a closed file is on the disk.
class OutputFile {
public:
    explicit OutputFile(std::filesystem::path path);  // must not exist
    ~OutputFile();
    OutputFile(OutputFile&& other) noexcept;
    OutputFile& operator=(OutputFile&& other) = delete;

    void write(std::span<const std::byte> bytes);
    void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

    // Overwrites bytes already written, for a header whose counts are known at the end.
    void overwrite(std::int64_t offset, std::span<const std::byte> bytes);

    void close();  // writes what is left, fsyncs, closes
    std::int64_t size_bytes() const { return flushed_ + static_cast<std::int64_t>(filled_); }
    const std::filesystem::path& path() const { return path_; }

private:
    void flush();
    void write_all(const std::byte* data, std::size_t count, std::int64_t offset);
    void leave_direct_mode();

    struct Freed {
        void operator()(std::byte* block) const;
    };
    std::filesystem::path path_;
    int fd_ = -1;
    bool direct_ = false;
    std::unique_ptr<std::byte, Freed> block_;
    std::size_t filled_ = 0;
    std::int64_t flushed_ = 0;
};

// Writes beside `path` and takes its place in commit(): a reader sees the old file or the whole new one, also after a
// power cut. Without commit() the destructor removes what was written, and the old file stays.
class AtomicFile {
public:
    explicit AtomicFile(std::filesystem::path path);
    ~AtomicFile();
    AtomicFile(AtomicFile&& other) noexcept = default;

    void write(std::span<const std::byte> bytes) { out_.write(bytes); }
    void write(std::string_view text) { out_.write(text); }
    void overwrite(std::int64_t offset, std::span<const std::byte> bytes) { out_.overwrite(offset, bytes); }
    void seal();    // writes what is left and fsyncs: nothing of size can go wrong after it
    void commit();  // seals, renames, and makes the name survive a power cut
    std::int64_t size_bytes() const { return out_.size_bytes(); }
    const std::filesystem::path& path() const { return path_; }

private:
    friend void commit_together(std::span<AtomicFile* const> files);
    void rename_into_place();

    std::filesystem::path path_;
    OutputFile out_;
    bool sealed_ = false, committed_ = false;
};

// Publishes files that belong together, in this order. All are sealed before the first is renamed, so a full disk leaves none
// of them. A rename that fails takes back those before it (an older file one of them replaced is then gone). A process that
// dies between two renames, a matter of microseconds, leaves the first of them without the others, each one whole.
void commit_together(std::span<AtomicFile* const> files);

void write_file_atomically(const std::filesystem::path& path, std::string_view content);
std::string read_file(const std::filesystem::path& path);

// A hidden name beside `path`, for what is to be renamed to it: rename is atomic only within one file system. What processes
// that were killed left under such names of `path` is removed, so that trying again does not fill the disk.
std::filesystem::path temporary_beside(const std::filesystem::path& path);

// Makes a rename or a new name inside `directory` survive a power cut.
void sync_directory(const std::filesystem::path& directory);

}  // namespace keel
