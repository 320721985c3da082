#!/usr/bin/env bash
# tests/sim/own_kernel_test.sh BUILD COMPILER: the kernel that docs/cudasim.md shows is built by the command beside it and is clean; and
# without its barrier it is told what the page says.
set -euo pipefail

build=$(cd -- "$1" && pwd -P) compiler=$2
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

awk '/^```cpp/ { on = 1; next } /^```/ { on = 0 } on' docs/cudasim.md >"$folder/mine.cu"
read -r -a command < <(grep -E '^    g\+\+ .*mine\.cu' docs/cudasim.md)
command=("$compiler" "${command[@]:1}" -o "$folder/mine")
command=("${command[@]/#mine.cu/$folder/mine.cu}")
command=("${command[@]/#build\//$build/}")

says() {  # what the kernel prints
    "${command[@]}"
    local said
    said=$("$folder/mine")
    [[ $said == *"$1"* ]] || { echo "it does not say \"$1\", but: $said"; exit 1; }
}
says clean
grep -q '__syncthreads' "$folder/mine.cu" || { echo "there is no barrier to take out"; exit 1; }
sed -i '/__syncthreads/d' "$folder/mine.cu"
says 'x differs from byte '
