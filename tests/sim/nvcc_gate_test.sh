#!/usr/bin/env bash
# tests/sim/nvcc_gate_test.sh: kernels/nvcc.sh fails where ptxas only remarks that wgmma is serialised or a setmaxnreg ignored, keeps
# its report, and lets everything else pass. No nvcc is needed.
set -euo pipefail

gate=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)/kernels/nvcc.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# What is run in place of nvcc: it says $1, writes the object and ends with $2.
# shellcheck disable=SC2016  # its own arguments
printf '#!/bin/sh\necho "$1"\ntouch object.o\nexit "$2"\n' >compiler
chmod +x compiler
expect() {  # CODE SAYS-TO-THE-USER COMPILER-SAYS COMPILER-CODE
    local code=0 said
    said=$("$gate" object.o report ./compiler "$3" "$4" 2>&1) || code=$?
    [[ $code == "$1" ]] || { echo "ended with $code instead of $1: $3"; exit 1; }
    [[ $said == *"$2"* ]] || { echo "does not say \"$2\": $said"; exit 1; }
    [[ $code == 0 || ! -e object.o || $4 != 0 ]] || { echo "leaves an object behind: $3"; exit 1; }
    grep -qF -- "$3" report || { echo "no report of: $3"; exit 1; }
    rm -f object.o
}
expect 0 '' 'ptxas info : Used 168 registers' 0
expect 0 '' 'ptxas info : (C7519) warpgroup.arrive is injected' 0
expect 1 'Used 12 registers, and an error' 'Used 12 registers, and an error' 1
for code in C7508 C7510 C7518; do expect 1 "$code" "ptxas info : ($code) Potential Performance Loss: wgmma is serialized" 0; done
