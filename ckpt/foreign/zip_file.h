// ckpt/foreign/zip_file.h: the zip container in which PyTorch saves: names, and where the bytes of each lie.
//
// Members must be stored, not compressed, so that they can be read in place. The central directory is read, whole, and
// held to the size of the file and to each member's own header; zip64 is known, for files past 4 GiB. Errors name the
// file and the member or the byte.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/base/file.h"

namespace keel {

struct ZipEntry {
    std::int64_t begin, size_bytes;  // of the content, in the file
    std::uint32_t crc32;
};

class ZipFile {
public:
    // The zip file is [begin, end) of `file`: a checkpoint may keep many in one.
    ZipFile(std::shared_ptr<const InputFile> file, std::int64_t begin, std::int64_t end);

    const std::map<std::string, ZipEntry, std::less<>>& entries() const { return entries_; }
    const ZipEntry* find(std::string_view name) const;  // nullptr if absent
    const std::shared_ptr<const InputFile>& file() const { return file_; }

    // The content of a small member, its checksum compared.
    std::string read(std::string_view name, std::int64_t limit_bytes) const;
    // Reads all of a member and compares its checksum. Memory: one block.
    void check(std::string_view name) const;

private:
    std::string where() const { return file_->path().string(); }

    std::shared_ptr<const InputFile> file_;
    std::map<std::string, ZipEntry, std::less<>> entries_;
};

}  // namespace keel
