// Who may include whom: cli → engine → { ckpt → comm, data, kernels } → kernels/base. Every #include of the tree is read.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace fs = std::filesystem;

namespace {

const std::map<std::string, std::set<std::string>> allowed = {
    {"kernels/base", {"kernels/base"}},
    {"kernels", {"kernels", "kernels/base"}},
    {"comm", {"comm", "kernels", "kernels/base"}},
    {"data", {"data", "kernels/base"}},
    {"ckpt", {"ckpt", "comm", "kernels/base"}},
    {"engine", {"engine", "ckpt", "comm", "data", "kernels", "kernels/base"}},
    {"cli", {"cli", "engine", "ckpt", "comm", "data", "kernels", "kernels/base"}},
};

std::string folder_of(const std::string& path) {
    return path.starts_with("kernels/base/") ? "kernels/base" : path.substr(0, path.find('/'));
}

}  // namespace

TEST(Includes, FollowTheArrowsOfTheDesign) {
    const fs::path root = KEEL_SOURCE_DIR;
    const std::regex include(R"rx(^\s*#\s*include\s+"([^"]+)")rx");
    int seen = 0;
    for (const char* top : {"kernels", "comm", "data", "ckpt", "engine", "cli"})
        for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
            if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
            const std::string file = fs::relative(entry.path(), root).string(), folder = folder_of(file);
            std::ifstream in(entry.path());
            int number = 0;
            for (std::string line; std::getline(in, line);) {
                ++number;
                std::smatch found;
                if (!std::regex_search(line, found, include)) continue;
                ++seen;
                const std::string target = found[1];
                EXPECT_TRUE(fs::exists(root / target)) << file << ":" << number << ": " << target << " is not spelled from the root";
                EXPECT_TRUE(allowed.at(folder).contains(folder_of(target)))
                    << file << ":" << number << ": " << folder << " must not include " << target;
            }
        }
    EXPECT_GT(seen, 100);
}
