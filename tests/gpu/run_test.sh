#!/usr/bin/env bash
# tests/gpu/run_test.sh: what the device check says of sections that are stopped by their limits, slow or wrong: none costs the others,
# and what a stopped one had measured is kept. Programs of this test stand for those that measure.
set -euo pipefail

check=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)/run.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/build/tests/gpu" "$folder/build/tests/sim"
cd "$folder/build"

# gpu_check SECTION DEVICE SIZE FILE. The first writes a row, and then its time is over: timeout, which waits for it two processes up,
# gets the signal that its own clock would send.
cat >tests/gpu/gpu_check <<'PROGRAM'
#!/usr/bin/env bash
case $1 in
    device) ;;
    ceilings)
        printf '[\n {"what": "copy"}\n]\n' >"$4"
        echo "copying"
        while read -r key value; do [[ $key == PPid: ]] && kill -ALRM "$value"; done </proc/$PPID/status
        exec sleep 1000 ;;
    gemm) printf '[]\n' >"$4"; echo "2 of 30 are below their goals"; exit 3 ;;
    bandwidth) echo "no memory"; exit 1 ;;
    layer) printf '[]\n' >"$4"; echo "a \"layer\"" ;;
esac
PROGRAM
printf '#!/bin/sh\n' | tee keel >tests/sim/test_conformance  # neither says anything: no test was run
printf '#!/bin/sh\necho "[  PASSED  ] 0 tests."\necho "[  SKIPPED ] 3 tests, listed below:"\n' >tests/sim/test_sim_kernels
chmod +x keel tests/gpu/gpu_check tests/sim/*

code=0
"$check" --build "$folder/build" --out "$folder/out" --device cudasim \
    ceilings gemm bandwidth layer conformance correctness hopper >"$folder/said" || code=$?
expect() { grep -qE -- "$2" "$folder/$1" || { echo "$1 does not say \"$2\":"; cat "$folder/$1"; exit 1; }; }
[[ $code == 1 ]] || { echo "ended with $code"; cat "$folder/said"; exit 1; }
expect out/ceilings.json '"status": "stopped by limit", "exit": 124, .*said last: copying", "rows": \['
expect out/ceilings.json '"what": "copy"'
expect out/gemm.json '"status": "slow", "exit": 3, .*"2 of 30 are below their goals"'
expect out/bandwidth.json '"status": "bad", "exit": 1, .*"no memory", "rows": null'
expect out/layer.json '"status": "good", "exit": 0, .*"a \\"layer\\""'
expect out/conformance.json '"status": "bad", .*"no test was run"'
expect out/correctness.json '"status": "bad", "exit": 77, .*"no test was run"'
expect out/hopper.json '"status": "skipped", "exit": 77, .*"no test was run"'
expect said '^ceilings +stopped by limit '
expect said '^layer +good '
