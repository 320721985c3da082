#!/bin/sh
# kernels/nvcc.sh OBJECT REPORT NVCC ARGUMENTS: compiles, keeps what ptxas reports in REPORT, and shows it if something fails.
#
# ptxas tells in passing, and not as a warning, what ruins a kernel of wgmma: a setmaxnreg that it ignores (C7508), products that
# it makes wait for one another (C7510, C7518). Here that is an error.
object=$1 report=$2
shift 2
mkdir -p "$(dirname "$object")"
if ! "$@" >"$report" 2>&1; then
    cat "$report" >&2
    exit 1
fi
if grep -E '\(C75(08|10|18)\)|wgmma.*serialized' "$report" >&2; then
    echo "$object: ptxas ignores setmaxnreg or serialises wgmma (above): accumulators must stay in registers from wgmma_fence to wgmma_wait" >&2
    rm -f "$object"
    exit 1
fi
