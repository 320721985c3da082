#include "kernels/base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/file_faults.h"

namespace keel {
namespace {

constexpr std::size_t block_bytes = std::size_t{8} << 20;  // past 4 MiB direct writes no longer gain
constexpr std::size_t block_alignment = 4096;              // what direct I/O asks of addresses, offsets and lengths

std::filesystem::path directory_of(const std::filesystem::path& path) {
    return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

std::atomic<unsigned> temporaries{0};  // of this process so far

// Whether "PID-N", the end of a temporary name, was given by a process that is gone. A killed one may have had the number
// that is ours now, as the first process of a container always does: then N is one we have not come to.
bool is_leftover(std::string_view end) {
    pid_t owner = 0;
    unsigned count = 0;
    const auto pid = std::from_chars(end.data(), end.data() + end.size(), owner);
    if (pid.ec != std::errc() || owner <= 0 || pid.ptr == end.data() + end.size() || *pid.ptr != '-') return false;
    const auto number = std::from_chars(pid.ptr + 1, end.data() + end.size(), count);
    if (number.ec != std::errc() || number.ptr != end.data() + end.size()) return false;
    return owner == ::getpid() ? count >= temporaries.load() : ::kill(owner, 0) != 0 && errno == ESRCH;
}

}  // namespace

std::filesystem::path temporary_beside(const std::filesystem::path& path) {
    const std::string prefix = concat(".", path.filename().string(), ".tmp-");
    std::error_code ignored;
    std::vector<std::filesystem::path> leftovers;
    for (std::filesystem::directory_iterator entry(directory_of(path), ignored), end; entry != end; entry.increment(ignored))
        if (const std::string name = entry->path().filename().string(); name.starts_with(prefix))
            if (is_leftover(std::string_view(name).substr(prefix.size()))) leftovers.push_back(entry->path());
    for (const auto& leftover : leftovers) std::filesystem::remove_all(leftover, ignored);
    return directory_of(path) / concat(prefix, ::getpid(), "-", temporaries.fetch_add(1));
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not keep us waiting for its writer
    if (fd_ < 0) fail("cannot open ", path_.string(), ": ", std::strerror(errno));
    struct stat info {};
    if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
        ::close(fd_);
        fail(path_.string(), " is not a regular file");
    }
    size_bytes_ = info.st_size;
}

InputFile::~InputFile() {
    if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_bytes_(other.size_bytes_) {}

void InputFile::read_at(std::int64_t offset, std::span<std::byte> out) const {
    std::size_t done = 0;
    while (done < out.size()) {
        const ssize_t got =
            ::pread(fd_, out.data() + done, out.size() - done, offset + static_cast<std::int64_t>(done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            fail("cannot read ", out.size(), " bytes at offset ", offset, " of ", path_.string(), ": ",
                 std::strerror(errno));
        if (got == 0)
            fail(path_.string(), " ends at byte ", offset + static_cast<std::int64_t>(done), ", but ", out.size(),
                 " bytes were expected at offset ", offset, "; was it cut while being copied?");
        done += static_cast<std::size_t>(got);
    }
}

void OutputFile::Freed::operator()(std::byte* block) const { std::free(block); }

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
    constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    fd_ = file_fault(FileStep::create, path_) ? -1 : ::open(path_.c_str(), flags, 0666);
    if (fd_ < 0) fail("cannot create ", path_.string(), ": ", std::strerror(errno));
    direct_ = ::fcntl(fd_, F_SETFL, O_DIRECT) == 0;  // refused by some file systems, and then not missed
    block_.reset(static_cast<std::byte*>(std::aligned_alloc(block_alignment, block_bytes)));
    if (!block_) {
        ::close(std::exchange(fd_, -1));
        ::unlink(path_.c_str());
        fail("cannot allocate ", block_bytes, " bytes to write ", path_.string());
    }
}

OutputFile::~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      direct_(other.direct_),
      block_(std::move(other.block_)),
      filled_(other.filled_),
      flushed_(other.flushed_) {}

void OutputFile::write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const std::size_t count = std::min(bytes.size(), block_bytes - filled_);
        std::memcpy(block_.get() + filled_, bytes.data(), count);
        filled_ += count;
        bytes = bytes.subspan(count);
        if (filled_ == block_bytes) flush();
    }
}

void OutputFile::overwrite(std::int64_t offset, std::span<const std::byte> bytes) {
    if (offset < 0 || offset + static_cast<std::int64_t>(bytes.size()) > size_bytes())
        fail("overwrite of ", bytes.size(), " bytes at offset ", offset, " passes the end of ", path_.string());
    // The part already on disk, then the part still in the block.
    const auto on_disk = static_cast<std::size_t>(
        std::clamp<std::int64_t>(flushed_ - offset, 0, static_cast<std::int64_t>(bytes.size())));
    if (on_disk != 0) {
        leave_direct_mode();
        write_all(bytes.data(), on_disk, offset);
    }
    if (on_disk < bytes.size())
        std::memcpy(block_.get() + (offset + static_cast<std::int64_t>(on_disk) - flushed_), bytes.data() + on_disk,
                    bytes.size() - on_disk);
}

void OutputFile::close() {
    flush();
    if (file_fault(FileStep::sync, path_) || ::fsync(fd_) != 0)
        fail("cannot bring the ", size_bytes(), " bytes of ", path_.string(), " to disk: ", std::strerror(errno));
    if (::close(std::exchange(fd_, -1)) != 0) fail("cannot close ", path_.string(), ": ", std::strerror(errno));
    block_.reset();
}

void OutputFile::flush() {
    if (filled_ % block_alignment != 0) leave_direct_mode();  // the tail of the file
    write_all(block_.get(), filled_, flushed_);
    flushed_ += static_cast<std::int64_t>(std::exchange(filled_, 0));
}

void OutputFile::write_all(const std::byte* data, std::size_t count, std::int64_t offset) {
    std::size_t done = 0;
    while (done < count) {
        const bool fault = file_fault(FileStep::write, path_);
        const ssize_t put = fault ? -1 : ::pwrite(fd_, data + done, count - done, offset + static_cast<std::int64_t>(done));
        if (put > 0) {
            done += static_cast<std::size_t>(put);
            if (done % block_alignment != 0) leave_direct_mode();  // a short write left an odd remainder
        } else if (put < 0 && errno == EINVAL && direct_) {
            leave_direct_mode();  // this file system wants another alignment
        } else if (put == 0 || errno != EINTR) {
            fail("cannot write ", count, " bytes at offset ", offset, " of ", path_.string(), ": ",
                 std::strerror(put == 0 ? ENOSPC : errno), "; ", offset + static_cast<std::int64_t>(done),
                 " bytes are written");
        }
    }
}

void OutputFile::leave_direct_mode() {
    if (direct_) ::fcntl(fd_, F_SETFL, 0);
    direct_ = false;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), out_(temporary_beside(path_)) {}

AtomicFile::~AtomicFile() {
    std::error_code ignored;
    if (!committed_ && !out_.path().empty()) std::filesystem::remove(out_.path(), ignored);
}

void AtomicFile::seal() {
    if (!std::exchange(sealed_, true)) out_.close();
}

void AtomicFile::rename_into_place() {
    if (file_fault(FileStep::rename, path_) || ::rename(out_.path().c_str(), path_.c_str()) != 0)
        fail("cannot rename ", out_.path().string(), " to ", path_.string(), ": ", std::strerror(errno));
    committed_ = true;
}

void AtomicFile::commit() {
    seal();
    rename_into_place();
    sync_directory(directory_of(path_));
}

void commit_together(std::span<AtomicFile* const> files) {
    for (AtomicFile* file : files) file->seal();
    try {
        for (AtomicFile* file : files) file->rename_into_place();
    } catch (...) {
        for (AtomicFile* file : files)  // back under the temporary name, which the destructor removes
            if (std::exchange(file->committed_, false)) ::rename(file->path_.c_str(), file->out_.path().c_str());
        throw;
    }
    for (const AtomicFile* file : files) sync_directory(directory_of(file->path_));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
    AtomicFile file(path);
    file.write(content);
    file.commit();
}

std::string read_file(const std::filesystem::path& path) {
    const InputFile file(path);
    std::string content(static_cast<std::size_t>(file.size_bytes()), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(content)));
    return content;
}

void sync_directory(const std::filesystem::path& directory) {
    const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) fail("cannot open folder ", directory.string(), ": ", std::strerror(errno));
    const int result = file_fault(FileStep::sync, directory) ? -1 : ::fsync(fd);
    const int reason = errno;
    ::close(fd);
    // Some network file systems cannot fsync a directory and say so; their renames are durable by other means.
    if (result != 0 && reason != EINVAL)
        fail("cannot bring folder ", directory.string(), " to disk: ", std::strerror(reason));
}

}  // namespace keel
