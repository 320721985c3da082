#include "cli/complain.h"

#include <cstdio>
#include <new>

#include "kernels/base/error.h"

namespace keel {
namespace {

int say(const char* what, ExitCode code) {
    std::fflush(stdout);
    std::fprintf(stderr, "keel: error: %s\n", what);
    return static_cast<int>(code);
}

}  // namespace

int complain(std::exception_ptr error) {
    try {
        std::rethrow_exception(error);
    } catch (const Error& e) {
        return say(e.what(), e.code());
    } catch (const std::bad_alloc&) {
        return say("out of memory; `keel estimate` shows what a run needs and what would lower it", ExitCode::failure);
    } catch (const std::exception& e) {
        return say(e.what(), ExitCode::failure);
    }
}

}  // namespace keel
