#include "engine/observe/append_file.h"

#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"

namespace keel {

AppendFile::AppendFile(std::filesystem::path path, const char* mode, Warn warn)
    : path_(std::move(path)), warn_(std::move(warn)), file_(std::fopen(path_.c_str(), mode)) {
    if (!file_) fail(path_.string(), " cannot be opened for writing: ", std::strerror(errno), "; check --run.dir");
}

AppendFile::~AppendFile() {
    flush();
    std::fclose(file_);
}

void AppendFile::write(std::string_view bytes) {
    if (!failed_ && std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) give_up();
}

void AppendFile::flush() {
    if (!failed_ && std::fflush(file_) != 0) give_up();
}

void AppendFile::give_up() {
    failed_ = true;
    warn_(path_.string() + ": " + std::strerror(errno) + "; the run goes on without it");
}

}  // namespace keel
