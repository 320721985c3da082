// kernels/base/error.h: the one exception type, and `fail`, the one way to throw it.
//
// A message says what happened, with the numbers, and what to do:
//     fail("rmsnorm: gain has ", n, " elements, but x has rows of ", hidden, "; pass this layer's own gain");
// The first argument must be a string literal or a std::string: it is where the call site is captured.
#pragma once

#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace keel {

// Exit codes of the binary. A usage error is one that --help would have prevented. `peer` is a consequence: another rank left,
// or a collective was not joined by all in time; the cause is told by the rank that exits with another code, if one does.
// `open` and `fault`: a step looked wrong, and another start will tell why, or it is known (engine/fault/finding.h).
// `hang`: a rank gave no sign of life, and --watch.leave says what then. `device`: a machine failed its self-test, or a rank
// stands out (--watch.even). docs/operations.md has them all, for whoever starts runs.
enum class ExitCode : int { ok = 0, failure = 1, usage = 2, peer = 3, open = 16, fault = 17, hang = 18, device = 19 };

class Error : public std::runtime_error {
public:
    Error(const std::string& message, std::source_location where, ExitCode code = ExitCode::failure)
        : std::runtime_error(message), where_(where), code_(code) {}

    // "kernels/rmsnorm.cpp:41", for the log; a person reads what().
    std::string where() const {
        std::string file = where_.file_name();
        for (const char* root : {"/kernels/", "/engine/", "/comm/", "/data/", "/ckpt/", "/cli/", "/tests/"})
            if (auto at = file.rfind(root); at != std::string::npos) file = file.substr(at + 1);
        return file + ":" + std::to_string(where_.line());
    }
    std::source_location location() const { return where_; }
    ExitCode code() const { return code_; }

private:
    std::source_location where_;
    ExitCode code_;
};

// A string together with the place it was written.
struct Located {
    std::string text;
    std::source_location where;
    Located(const char* t, std::source_location w = std::source_location::current()) : text(t), where(w) {}
    Located(std::string t, std::source_location w = std::source_location::current()) : text(std::move(t)), where(w) {}
};

template <class... Parts> std::string concat(const Parts&... parts) {
    std::ostringstream out;
    if constexpr (sizeof...(parts) > 0) (out << ... << parts);
    return out.str();
}

template <class... Parts> [[noreturn]] void fail(Located first, const Parts&... parts) {
    throw Error(first.text + concat(parts...), first.where);
}

// The same for mistakes on the command line or in a configuration file: the process exits with 2.
template <class... Parts> [[noreturn]] void fail_usage(Located first, const Parts&... parts) {
    throw Error(first.text + concat(parts...), first.where, ExitCode::usage);
}

}  // namespace keel
