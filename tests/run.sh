#!/usr/bin/env bash
# tests/run.sh: installs what is missing, builds everything, runs the whole test suite; then the parsers' fuzz targets for a few
# seconds each, built under the address and undefined-behaviour sanitizers.
#   tests/run.sh [CTEST OPTIONS]      for example: tests/run.sh -R Schedule
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=cli/setup.sh
source "$root/cli/setup.sh"

# Open MPI is optional for keel, and not for its tests: a build from before it was there looks again.
need_packages "${build_packages[@]}" zstd libopenmpi-dev openmpi-bin
if [[ -f "$root/build/build.ninja" ]]; then cmake "$root/build" >/dev/null; fi
build "$root" all
say "Testing"
ctest --test-dir "$root/build" --output-on-failure -j "$(nproc)" "$@"

say "Fuzzing the parsers under the sanitizers"
cmake -S "$root" -B "$root/build/sanitized" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKEEL_SANITIZE=address,undefined \
    -DKEEL_TEST_AREAS=fuzz >"$root/build/sanitized.log" || { cat "$root/build/sanitized.log" >&2; exit 1; }
cmake --build "$root/build/sanitized" -j "$(nproc)" --target fuzz
ctest --test-dir "$root/build/sanitized" --output-on-failure "$@"
