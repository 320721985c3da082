#include "ckpt/foreign/zip_file.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::int64_t end_size = 22, locator_size = 20, end64_size = 56, member_size = 46, local_size = 30;
constexpr std::int64_t longest_comment = 65535, max_directory_bytes = std::int64_t{256} << 20;
constexpr std::int64_t block_bytes = std::int64_t{4} << 20;
constexpr std::uint32_t in_zip64 = 0xffffffff;  // the value stands in the extra field

std::uint64_t number(const std::string& bytes, std::size_t at, std::size_t width) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < width; ++i)
        value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes.at(at + i))) << (8 * i);
    return value;
}

// A part of the file that is a zip file of its own.
struct Part {
    const InputFile& file;
    std::int64_t begin, end;

    std::int64_t size() const { return end - begin; }
    std::string read(std::int64_t at, std::int64_t count, const char* what) const {
        if (at < 0 || count < 0 || at > size() || count > size() - at)
            fail(file.path().string(), ": ", what, " should be at byte ", at, ", ", count, " bytes long, but the zip file has ",
                 size(), " bytes; it is cut or damaged");
        std::string bytes(static_cast<std::size_t>(count), '\0');
        file.read_at(begin + at, std::as_writable_bytes(std::span(bytes)));
        return bytes;
    }
};

struct Directory {
    std::uint64_t members, size, offset;
};

// The record at the end that says where the directory is; with zip64 another one in front of it.
Directory find_directory(const Part& zip) {
    const std::string& name = zip.file.path().string();
    const std::int64_t tail = std::min(zip.size(), end_size + longest_comment);
    const std::string bytes = zip.read(zip.size() - tail, tail, "the end");
    const std::size_t at = bytes.size() < end_size ? std::string::npos : bytes.rfind("PK\5\6", bytes.size() - end_size);
    if (at == std::string::npos)
        fail(name, ": the directory at the end of the zip file is missing; the file is cut, or its download was");
    Directory d{number(bytes, at + 10, 2), number(bytes, at + 12, 4), number(bytes, at + 16, 4)};
    const std::int64_t end_at = zip.size() - tail + static_cast<std::int64_t>(at);
    if (end_at < locator_size) return d;
    const std::string locator = zip.read(end_at - locator_size, locator_size, "the zip64 locator");
    if (!locator.starts_with("PK\6\7")) return d;
    const std::uint64_t record_at = number(locator, 8, 8);
    if (record_at > static_cast<std::uint64_t>(zip.size())) fail(name, ": the zip64 record is said to be at byte ", record_at);
    const std::string record = zip.read(static_cast<std::int64_t>(record_at), end64_size, "the zip64 record");
    if (!record.starts_with("PK\6\6")) fail(name, ": no zip64 record at byte ", record_at, ", where the locator says it is");
    return {number(record, 32, 8), number(record, 40, 8), number(record, 48, 8)};
}

// One member of the directory, at `at`; moves `at` behind it.
struct Member {
    std::string name;
    std::uint64_t stored, size, local;
    std::uint32_t crc32;
    std::uint16_t flags, method;
};
Member read_member(const std::string& file, const std::string& bytes, std::size_t& at) {
    if (bytes.size() - at < member_size || bytes.compare(at, 4, "PK\1\2") != 0)
        fail(file, ": byte ", at, " of the zip directory does not begin a member");
    Member m{.name = {}, .stored = number(bytes, at + 20, 4), .size = number(bytes, at + 24, 4), .local = number(bytes, at + 42, 4),
             .crc32 = static_cast<std::uint32_t>(number(bytes, at + 16, 4)),
             .flags = static_cast<std::uint16_t>(number(bytes, at + 8, 2)), .method = static_cast<std::uint16_t>(number(bytes, at + 10, 2))};
    const std::size_t name = number(bytes, at + 28, 2), extra = number(bytes, at + 30, 2), comment = number(bytes, at + 32, 2);
    if (bytes.size() - at - member_size < name + extra + comment)
        fail(file, ": the member at byte ", at, " of the zip directory reaches past its end");
    m.name = bytes.substr(at + member_size, name);
    std::size_t field = at + member_size + name;
    const std::size_t fields_end = field + extra;
    at = fields_end + comment;
    while (field + 4 <= fields_end) {
        const std::uint64_t id = number(bytes, field, 2), length = number(bytes, field + 2, 2);
        std::size_t value = field + 4;
        if (length > fields_end - value) break;
        field = value + length;
        if (id != 1) continue;
        for (std::uint64_t* wide : {&m.size, &m.stored, &m.local}) {  // in this order, and only those that do not fit
            if (*wide != in_zip64) continue;
            if (field - value < 8) fail(file, ": member \"", m.name, "\": its zip64 sizes are cut");
            *wide = number(bytes, value, 8);
            value += 8;
        }
    }
    return m;
}

}  // namespace

ZipFile::ZipFile(std::shared_ptr<const InputFile> file, std::int64_t begin, std::int64_t end) : file_(std::move(file)) {
    const Part zip{*file_, begin, end};
    const Directory d = find_directory(zip);
    if (d.size > static_cast<std::uint64_t>(max_directory_bytes) || d.offset > static_cast<std::uint64_t>(zip.size()))
        fail(where(), ": a zip directory of ", d.size, " bytes at byte ", d.offset, " cannot be");
    const std::string bytes =
        zip.read(static_cast<std::int64_t>(d.offset), static_cast<std::int64_t>(d.size), "the zip directory");
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < d.members; ++i) {
        const Member m = read_member(where(), bytes, at);
        const auto member = [&] { return concat(where(), ": member \"", m.name, "\" "); };
        if ((m.flags & 1) != 0) fail(member(), "is encrypted");
        if (m.method != 0 || m.stored != m.size)
            fail(member(), "is compressed; PyTorch stores its members as they are, so this file was packed again: unpack it, and zip it with -0");
        if (m.local > d.offset || m.size > d.offset) fail(member(), "lies outside of the file");
        const auto local = static_cast<std::int64_t>(m.local), size = static_cast<std::int64_t>(m.size);
        const std::string head = zip.read(local, local_size, "a member");
        const auto name_size = static_cast<std::int64_t>(number(head, 26, 2)), extra = static_cast<std::int64_t>(number(head, 28, 2));
        if (!head.starts_with("PK\3\4") || zip.read(local + local_size, name_size, "a member's name") != m.name)
            fail(member(), "is not at byte ", m.local, ", where the directory says it is; the file is damaged");
        const std::int64_t content = local + local_size + name_size + extra;
        if (content > static_cast<std::int64_t>(d.offset) - size)
            fail(member(), "takes ", size, " bytes from byte ", content, " on, but the directory begins at ", d.offset);
        if (!entries_.emplace(m.name, ZipEntry{begin + content, size, m.crc32}).second) fail(member(), "is there twice");
    }
}

const ZipEntry* ZipFile::find(std::string_view name) const {
    const auto at = entries_.find(name);
    return at == entries_.end() ? nullptr : &at->second;
}

std::string ZipFile::read(std::string_view name, std::int64_t limit_bytes) const {
    const ZipEntry* entry = find(name);
    if (!entry) fail(where(), ": no member \"", name, "\"");
    if (entry->size_bytes > limit_bytes) fail(where(), ": member \"", name, "\" has ", entry->size_bytes, " bytes; more than ", limit_bytes, " is not read");
    check(name);
    std::string bytes(static_cast<std::size_t>(entry->size_bytes), '\0');
    file_->read_at(entry->begin, std::as_writable_bytes(std::span(bytes)));
    return bytes;
}

void ZipFile::check(std::string_view name) const {
    const ZipEntry& entry = entries_.find(name)->second;
    std::vector<std::byte> block(static_cast<std::size_t>(std::min(block_bytes, entry.size_bytes)));
    uLong crc = ::crc32(0, nullptr, 0);
    for (std::int64_t done = 0; done < entry.size_bytes;) {
        const auto now = std::span(block).first(static_cast<std::size_t>(std::min(block_bytes, entry.size_bytes - done)));
        file_->read_at(entry.begin + done, now);
        crc = ::crc32(crc, reinterpret_cast<const Bytef*>(now.data()), static_cast<uInt>(now.size()));
        done += static_cast<std::int64_t>(now.size());
    }
    if (entry.crc32 != 0 && crc != entry.crc32)  // 0: written by a PyTorch that was told not to compute them
        fail(where(), ": member \"", name, "\" is damaged: its ", entry.size_bytes, " bytes have another checksum than the one beside them; fetch the file again");
}

}  // namespace keel
