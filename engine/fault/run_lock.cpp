#include "engine/fault/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "kernels/base/error.h"

namespace keel {
namespace {

std::string host() {
    char name[256] = {};
    return ::gethostname(name, sizeof name - 1) == 0 ? name : "an unnamed host";
}

// "process 123 on host"; the owner may be writing it at this moment, so it can be empty.
std::string owner(int fd) {
    char text[320] = {};
    const ssize_t got = ::pread(fd, text, sizeof text - 1, 0);
    const std::string line(text, got > 0 ? static_cast<std::size_t>(got) : 0);
    const auto end = line.find('\n');
    return end == std::string::npos ? "another process" : line.substr(0, end);
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& run_dir) {
    std::error_code error;
    std::filesystem::create_directories(run_dir, error);
    if (error) fail("cannot make folder ", run_dir.string(), ": ", error.message(), "; name another --run.dir");
    const auto path = run_dir / ".lock";
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) fail("cannot create ", path.string(), ": ", std::strerror(errno), "; --run.dir must be a folder that can be written");
    int result = 0;
    do result = ::flock(fd_, LOCK_EX | LOCK_NB);
    while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EWOULDBLOCK) {
        const std::string who = owner(fd_);
        ::close(fd_);
        fail(run_dir.string(), " is in use: ", who, " trains there; wait for it, stop it, or name another --run.dir");
    }
    // A file system without locks (result still not 0) takes the run on its user's word.
    const std::string line = concat("process ", ::getpid(), " on ", host(), "\n");
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, line.data(), line.size(), 0) < 0) {
        // The name of the owner is a courtesy: a full disk is told by what needs the space.
    }
}

RunLock::~RunLock() { ::close(fd_); }

}  // namespace keel
