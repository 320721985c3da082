#!/usr/bin/env bash
# tests/sim/sanitize.sh [address] [thread]: the simulator and every kernel under sanitizers (docs/cudasim.md): the address and
# undefined-behaviour sanitizers in build/asan, the thread sanitizer in build/tsan; without an argument both. Says what each took.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
stage() {  # FOLDER SANITIZERS TARGET…
    local build=$root/build/$1
    cmake -S "$root" -B "$build" -G Ninja -DKEEL_SANITIZE="$2" -DKEEL_TEST_AREAS=sim -DCMAKE_CXX_FLAGS_RELEASE=-O1 >/dev/null
    cmake --build "$build" -j "$(nproc)" --target "${@:3}"
}
run() { time "$root/build/$1" --gtest_brief=1 "${@:2}"; }

TIMEFORMAT='%R s, %U s of processors'
if (($# == 0)); then set -- address thread; fi
for sanitizer in "$@"; do
    case $sanitizer in
        address)
            stage asan address,undefined test_sim test_sim_kernels test_conformance
            # A launch that is stopped for a seeded mistake leaves its threads, and what they hold, where they are.
            ASAN_OPTIONS=detect_leaks=0 run asan/tests/sim/test_sim
            run asan/tests/sim/test_sim_kernels
            run asan/tests/sim/test_conformance
            ;;
        thread)  # of test_sim only what it is for: it would report the seeded races of the others, as it should
            stage tsan thread test_sim test_sim_kernels
            run tsan/tests/sim/test_sim --gtest_filter='ThreadSanitizer*'
            run tsan/tests/sim/test_sim_kernels
            ;;
        *) echo "$sanitizer is neither address nor thread" >&2; exit 2 ;;
    esac
done
