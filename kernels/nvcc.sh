#!/bin/sh
# kernels/nvcc.sh OBJECT REPORT NVCC ARGUMENTS: compiles, keeps what ptxas reports in REPORT, and shows it if something fails.
object=$1 report=$2
shift 2
mkdir -p "$(dirname "$object")"
if "$@" >"$report" 2>&1; then exit 0; fi
cat "$report" >&2
exit 1
