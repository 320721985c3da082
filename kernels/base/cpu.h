// kernels/base/cpu.h: whether this processor can run what was compiled.
//
// keel is compiled for one instruction set (KEEL_ARCH, by default the processor it is built on). On a processor without it
// the first wide instruction would end the process with SIGILL and no word. So the check runs before main and before any
// static constructor, in a file compiled for the oldest processor.
#pragma once

namespace keel {

// Features the rest of keel was compiled with, as __builtin_cpu_supports names them; ended by nullptr.
extern const char* const compiled_features[];

// Keeps the check in a program that links keel statically; calling it does nothing more.
void require_cpu();

}  // namespace keel
