#!/usr/bin/env bash
# tests/run.sh: installs what is missing, builds everything, runs the whole test suite.
#   tests/run.sh [CTEST OPTIONS]      for example: tests/run.sh -R Schedule
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=cli/setup.sh
source "$root/cli/setup.sh"

need_packages "${build_packages[@]}"
build "$root" all
say "Testing"
ctest --test-dir "$root/build" --output-on-failure -j "$(nproc)" "$@"
