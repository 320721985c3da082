// cli/complain.h: every error becomes one line on stderr and an exit code.
#pragma once

#include <exception>

namespace keel {

int complain(std::exception_ptr error);

}  // namespace keel
