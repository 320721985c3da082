#include "engine/fault/heartbeat.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/observe/json_line.h"

namespace keel {
namespace {

std::string file_name(int rank) {
    char name[32];
    std::snprintf(name, sizeof name, "rank-%05d.json", rank);
    return name;
}

// Whether all of it arrived; errno says why not.
bool write_whole(const char* path, const char* text) {
    const int fd = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return false;
    const std::size_t size = std::strlen(text);
    const bool whole = ::write(fd, text, size) == static_cast<ssize_t>(size);
    return ::close(fd) == 0 && whole;
}

}  // namespace

Heartbeat::Heartbeat(double seconds, const std::filesystem::path& run_dir, const Standing& standing)
    : standing_(standing),
      folder_(run_dir / "heartbeat"),
      path_(run_dir / "heartbeat" / file_name(standing.world().rank())),
      fresh_(run_dir / "heartbeat" / ("." + file_name(standing.world().rank()))),
      writes_(seconds > 0) {
    (void)standing.world().host();  // asks the system once, and allocates: not in a step
    ticker_.emplace(seconds, [this] { beat(standing_.what()); });
}

Heartbeat::~Heartbeat() {
    ticker_.reset();
    if (writes_ && standing_.started()) beat("ended");  // a start that was refused is not the run
}

void Heartbeat::beat(const char* what) {
    const auto seconds = [](auto span) { return std::chrono::duration<double>(span).count(); };
    char calls[512];
    standing_.world().under_way().describe(calls, sizeof calls);
    JsonLine line("heartbeat");
    line.count("rank", standing_.world().rank()).text("host", standing_.world().host()).count("pid", ::getpid());
    line.number("time", seconds(std::chrono::system_clock::now().time_since_epoch())).text("phase", what);
    line.number("phase_seconds", seconds(Clock::now() - standing_.since())).count("step", standing_.step());
    line.count("micro_batch", standing_.micro_batch() + 1).text("waits_in", calls);
    const char* text = line.finish();
    if (!write_whole(fresh_.c_str(), text) &&
        !(errno == ENOENT && (::mkdir(folder_.c_str(), 0777) == 0 || errno == EEXIST) && write_whole(fresh_.c_str(), text))) {
        // No run's folder yet, or none any more, is no news; anything else is told once.
        if (errno != ENOENT && !warned_) {
            std::fprintf(stderr, "keel: warning: cannot write %s: %s; the heartbeat stays as it was\n", path_.c_str(),
                         std::strerror(errno));
            warned_ = true;
        }
        return;
    }
    ::rename(fresh_.c_str(), path_.c_str());
}

}  // namespace keel
