// engine/observe/append_file.h: a file that a run adds to while it goes on, and may lose: one that cannot be written
// any more (a full disk) is told once and left alone, since what follows a torn record could not be read, and the run
// goes on.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace keel {

using Warn = std::function<void(const std::string&)>;

class AppendFile {
public:
    // Throws where the file cannot be opened. `mode` as of fopen: "a", or "wx" for one that must be new.
    AppendFile(std::filesystem::path path, const char* mode, Warn warn);
    ~AppendFile();
    AppendFile(const AppendFile&) = delete;
    AppendFile& operator=(const AppendFile&) = delete;

    // What was written is in the file after flush(), whatever becomes of the process. Neither allocates.
    void write(std::string_view bytes);
    void flush();
    const std::filesystem::path& path() const { return path_; }

private:
    void give_up();

    std::filesystem::path path_;
    Warn warn_;
    std::FILE* file_;
    bool failed_ = false;
};

}  // namespace keel
