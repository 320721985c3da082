// tests/temp_folder.h: a folder of a test's own, gone when the test is. Tests run side by side in processes of their own, and a
// file with a name that two of them know is a file that one writes while the other reads it: every file a test makes lies in here.
// The name has a space, as users' folders have.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace keel::test {

class TempFolder {
public:
    TempFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "keel test XXXXXX").string();
        if (!mkdtemp(name.data())) throw std::runtime_error("no folder for a test can be made as " + name);
        path_ = name;
    }
    ~TempFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::string operator/(std::string_view name) const { return (path_ / name).string(); }
    std::string write(std::string_view name, std::string_view content) const {
        std::ofstream(path_ / name, std::ios::binary) << content;  // no fsync: tests write thousands
        return *this / name;
    }

private:
    std::filesystem::path path_;
};

}  // namespace keel::test
