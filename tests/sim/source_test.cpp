// What keeps one source fit for two compilers: inline PTX in the wrapper headers alone, launches without chevrons,
// shared memory through the macros, and no CUDA header but where the device layer includes it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

struct Rule {
    std::regex pattern;
    std::set<std::string> exempt;
    const char* instead;
};

// Comments may speak of anything.
std::string without_comment(std::string line) {
    if (const auto at = line.find("//"); at != std::string::npos) line.resize(at);
    return line;
}

}  // namespace

TEST(Sources, KernelsAreWrittenForBothCompilers) {
    const std::set<std::string> wrappers = {"mma.cuh", "async.cuh", "hopper.cuh", "wgmma.cuh", "device.cuh"};
    const Rule rules[] = {
        {std::regex(R"(\basm\b)"), wrappers, "put the instruction into a wrapper of mma.cuh, async.cuh, hopper.cuh or wgmma.cuh"},
        {std::regex(R"(<<<)"), {}, "launch(stream, {...}, kernel, ...)"},
        {std::regex(R"(\b__shared__\b)"), wrappers, "KEEL_SHARED or KEEL_DYNAMIC_SHARED"},
        {std::regex(R"(__CUDA_ARCH__)"), wrappers, "a wrapper with two bodies, or a compile-time parameter"},
    };
    int seen = 0;
    std::vector<fs::directory_entry> entries;
    for (const char* folder : {"kernels", "comm"})
        for (const auto& entry : fs::directory_iterator(fs::path(KEEL_SOURCE_DIR) / folder)) entries.push_back(entry);
    for (const auto& entry : entries) {
        const std::string extension = entry.path().extension().string(), name = entry.path().filename().string();
        if (extension != ".cu" && extension != ".cuh") continue;
        ++seen;
        std::ifstream in(entry.path());
        int number = 0;
        for (std::string line; std::getline(in, line);) {
            ++number;
            for (const Rule& rule : rules)
                EXPECT_TRUE(rule.exempt.contains(name) || !std::regex_search(without_comment(line), rule.pattern))
                    << entry.path().string() << ":" << number << ": " << line << "\ninstead: " << rule.instead;
        }
    }
    EXPECT_GE(seen, 5);
}

// The model is useful without keel: it includes nothing of it.
TEST(Sources, TheModelKnowsNothingOfKeel) {
    const std::regex include(R"rx(^\s*#\s*include\s+"([^"]+)")rx");
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(KEEL_SOURCE_DIR) / "kernels/cudasim")) {
        if (!entry.is_regular_file()) continue;
        std::ifstream in(entry.path());
        for (std::string line; std::getline(in, line);) {
            std::smatch found;
            if (!std::regex_search(line, found, include)) continue;
            EXPECT_TRUE(found[1].str().starts_with("kernels/cudasim/")) << entry.path() << ": " << line;
        }
    }
}
