#include "data/inputs.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

using Paths = std::vector<fs::path>;

bool is_pattern(const std::string& text) { return text.find_first_of("*?[") != std::string::npos; }
bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

std::vector<fs::path> entries(const fs::path& folder) {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; entry != end; entry.increment(error)) {
        found.push_back(entry->path());
        if (error) break;
    }
    if (error) fail("cannot list the folder ", folder.string(), ": ", error.message());
    return found;
}

void add_folder(const fs::path& folder, const std::vector<std::string>& endings, Paths& found) {
    for (const fs::path& path : entries(folder)) {
        if (is_hidden(path)) continue;
        if (fs::is_directory(path) && !fs::is_symlink(path))
            add_folder(path, endings, found);  // links may lead in circles
        else if (fs::is_regular_file(path) &&
                 (endings.empty() || std::any_of(endings.begin(), endings.end(),
                                                 [&](const std::string& e) { return path.native().ends_with(e); })))
            found.push_back(path);
    }
}

// `rest` are the components of the pattern that `base` does not yet meet.
void add_matches(const fs::path& base, const std::vector<std::string>& rest, std::size_t at, Paths& found) {
    if (at == rest.size()) {
        if (fs::is_regular_file(base)) found.push_back(base);
        return;
    }
    const fs::path folder = base.empty() ? fs::path(".") : base;
    if (!fs::is_directory(folder)) return;
    const std::string& part = rest[at];
    if (!is_pattern(part)) return add_matches(base / part, rest, at + 1, found);
    if (part == "**") {
        const bool last = at + 1 == rest.size();  // then every file below is meant
        if (!last) add_matches(base, rest, at + 1, found);
        for (const fs::path& entry : entries(folder)) {
            if (is_hidden(entry)) continue;
            if (last && fs::is_regular_file(entry)) found.push_back(base / entry.filename());
            else if (fs::is_directory(entry) && !fs::is_symlink(entry)) add_matches(base / entry.filename(), rest, at, found);
        }
        return;
    }
    for (const fs::path& entry : entries(folder))
        if (::fnmatch(part.c_str(), entry.filename().c_str(), FNM_PERIOD) == 0)
            add_matches(base / entry.filename(), rest, at + 1, found);
}

Paths matches(const std::string& pattern) {
    std::vector<std::string> parts;
    const fs::path path(pattern);
    for (const fs::path& part : path.relative_path()) parts.push_back(part.string());
    Paths found;
    add_matches(path.root_path(), parts, 0, found);
    return found;
}

void add(const std::string& input, const std::vector<std::string>& endings, Paths& paths) {
    Paths found;
    if (fs::is_directory(input)) add_folder(input, endings, found);
    else if (!is_pattern(input) || fs::exists(input)) return paths.emplace_back(input), void();
    else found = matches(input);
    if (found.empty() && fs::is_directory(input))
        fail_usage("the folder ", input, " holds no files", endings.empty() ? "" : " of the kind that is read here");
    if (found.empty()) fail_usage("no file matches ", input);
    std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
    found.erase(std::unique(found.begin(), found.end()), found.end());  // ** may come to a file on two ways
    paths.insert(paths.end(), found.begin(), found.end());
}

void add_list(const fs::path& list, const std::vector<std::string>& endings, Paths& paths) {
    std::istringstream lines(read_file(list));
    const std::size_t before = paths.size();
    for (std::string line; std::getline(lines, line);) {
        while (!line.empty() && std::string_view(" \t\r").find(line.back()) != std::string_view::npos) line.pop_back();
        if (line.empty() || line[0] == '#') continue;
        add((list.parent_path() / line).string(), endings, paths);
    }
    if (paths.size() == before) fail_usage("the list ", list.string(), " names no files");
}

}  // namespace

std::vector<fs::path> expand_inputs(const std::vector<std::string>& inputs, const std::vector<std::string>& endings) {
    Paths paths;
    for (const std::string& input : inputs) {
        if (input.size() > 1 && input[0] == '@' && !fs::exists(input)) add_list(input.substr(1), endings, paths);
        else add(input, endings, paths);
    }
    std::set<std::string> seen;
    for (const fs::path& path : paths)
        if (!seen.insert(path.lexically_normal().string()).second)
            fail_usage(path.string(), " is named twice, and would be read twice");
    return paths;
}

}  // namespace keel
