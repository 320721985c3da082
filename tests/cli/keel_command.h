// tests/cli/keel_command.h: the binary as a user types it: words through a shell, and what it says and leaves with.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "tests/temp_folder.h"

namespace keel::test {

struct Outcome {
    int code = -1;  // 128 where a signal ended it
    std::string out, err;
};

// `keel WORDS` with `folder` as its working folder. With `redirect` (" >/dev/full") stdout goes there, and `out` is empty.
inline Outcome run_keel(const std::string& words, const std::filesystem::path& folder = ".", const std::string& redirect = "") {
    const TempFolder said;
    const std::string to = redirect.empty() ? concat(" >'", said / "out", "'") : redirect;
    const std::string command =
        concat("cd '", folder.string(), "' && '" KEEL_BINARY "' ", words, to, " 2>'", said / "err", "'");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, redirect.empty() ? read_file(said / "out") : "", read_file(said / "err")};
}

// Each word as it is, whatever it holds (but for a single quote).
inline Outcome run_keel_words(const std::vector<std::string>& words) {
    std::string line;
    for (const std::string& word : words) line += concat(" '", word, "'");
    return run_keel(line);
}

}  // namespace keel::test
