#!/usr/bin/env bash
# tests/gpu/run.sh: what to run first on a GPU, in under six minutes: one section after another, each with a time of its own, so that
# none costs the others; a JSON file for each, and a short table last. docs/gpu.md says what each section tells.
#   tests/gpu/run.sh [--build DIR] [--out DIR] [--device cuda|cudasim] [SECTION...]
# With --device cudasim everything is small: it shows that the check works, and nothing of speed, which is not judged then.
# Ends with 0 if every section is good, 1 if one is bad, slow (right, and below its goals) or stopped by its limit, 77 where there
# is no such device.
set -euo pipefail
export LC_ALL=C  # points in numbers, one order of names

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
build=$root/build out=gpu-check device=cuda only=() inner=
die() { printf 'gpu check: %s\n' "$*" >&2; exit 2; }
while (($# > 0)); do
    case $1 in
        --build | --out | --device | --inner) (($# > 1)) || die "$1 needs a value" ;;&
        --build) build=$2; shift 2 ;;
        --out) out=$2; shift 2 ;;
        --device) device=$2; shift 2 ;;
        --inner) inner=$2; shift 2 ;;
        -*) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; die "unknown option $1" ;;
        *) only+=("$1"); shift ;;
    esac
done
case $device in cuda) size=full ;; cudasim) size=tiny ;; *) die "--device $device: it can be cuda or cudasim" ;; esac

# Name, and seconds it may take: 345 in all.
sections=(identity:5 ceilings:20 conformance:10 correctness:40 hopper:20 gemm:45 attention:40 bandwidth:20 layer:10 train:60 determinism:20 sanitizer:55)
keel=$build/keel check=$build/tests/gpu/gpu_check
conformance_test=$build/tests/sim/test_conformance kernels_test=$build/tests/sim/test_sim_kernels

# ---- the sections: what each prints goes to its log, and the last line to the table --------------------------------
# shellcheck disable=SC2317  # they are called by the name that --inner gives

tiny() { [[ $size == tiny ]]; }
measured() { "$check" "$1" "$device" "$size" "$out/$1.detail"; }
# Of googletest, which is content where nothing ran: that is no good section, but one that was passed over, or a mistake.
passed() {
    local n
    n=$(awk '/\[  PASSED  \]/ { n = $4 } END { print n + 0 }' "$out/tests.log")
    if ((n > 0)); then printf '%s %s\n' "$n" "$1"; return; fi
    echo "no test was run"
    grep -q '\[  SKIPPED \]' "$out/tests.log" && return 77
    return 1
}

identity() {
    "$keel" devices
    if ! tiny && command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit,memory.total --format=csv,noheader || true
    fi
    "$keel" devices | awk -v device="$device" '$1 == device { sub(/^[a-z]+ +/, ""); line = $0; getline; sub(/^ +/, ""); print line "; " $0 }'
}
ceilings() { measured ceilings; }
conformance() {
    "$conformance_test" | tee "$out/tests.log"
    passed "tests passed; the hashes of each instruction are in the log"
}
correctness() {  # against the double references; on a GPU each op twice, bit for bit
    if tiny; then kernels 'SwigluCuda.*'; else kernels '-AttentionHopper.*'; fi
}
hopper() {  # the kernels that are off by default, apart: should one hang, it costs nothing else
    if tiny; then kernels 'AttentionHopper.GradientsOverPartsOfTheKeysAddUpToTheWhole'; else kernels 'AttentionHopper.*'; fi
}
kernels() {
    KEEL_TEST_DEVICE=$device "$kernels_test" --gtest_filter="$1" | tee "$out/tests.log"
    passed "tests of kernels passed"
}
gemm() { measured gemm; }
attention() {
    local line torch code=0
    line=$(measured attention) || code=$?
    printf '%s\n' "$line"
    if ! tiny && ((code == 0 || code == 3)) && python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
        torch=$(python3 "$root/tests/gpu/attention_torch.py" "$out/attention_torch.json" | tail -n 1) || torch=cannot
        printf '%s | PyTorch %s\n' "$line" "$torch"
    fi
    return "$code"
}
bandwidth() { measured bandwidth; }
layer() { measured layer; }

text_to_tokens() {  # keel's own documents and sources, learned and cut into tokens
    tokens=$out/text-$size.tok
    [[ ! -f $tokens ]] || return 0
    find "$root/docs" "$root/kernels" "$root/engine" \( -name '*.md' -o -name '*.cpp' -o -name '*.cu' \) -print0 | sort -z | xargs -0 cat >"$out/text.txt"
    if tiny; then head -c 100000 "$out/text.txt" >"$out/less.txt" && mv "$out/less.txt" "$out/text.txt"; fi
    "$keel" tokenizer train --vocab 512 --out "$out/tokenizer-$size" "$out/text.txt"
    "$keel" tokenize --tokenizer "$out/tokenizer-$size" --out "$tokens" "$out/text.txt"
}
# What all runs here share; the rest of a run's command line follows.
run_in() {
    local run=$1
    rm -rf "${out:?}/$run"
    command=("$keel" train --run.device "$device" --data.train "$tokens" --data.tokenizer "$out/tokenizer-$size" --run.dir "$out/$run" --train.seed 7
        --watch.self_test false --observe.tensorboard false "${@:2}")
}
train() {
    text_to_tokens
    local last=15 shape=(--model.preset llama-3.2-1b --data.seq_len 2048 --train.micro_batch 16 --train.global_batch 64 --observe.device_peak h200)
    if tiny; then
        last=12 shape=(--model.hidden 32 --model.layers 2 --model.heads 4 --model.kv_heads 2 --model.ffn 64 --data.seq_len 32 --train.micro_batch 2
            --train.global_batch 4 --optim.lr 1e-2)
    fi
    # More steps than are wanted, so that none of the time goes to a last checkpoint of 17 GB.
    run_in train "${shape[@]}" --train.steps 1000
    "${command[@]}" &
    local run=$! log=$out/train/log.jsonl
    trap 'kill -KILL '"$run"' 2>/dev/null || true' EXIT
    until grep -qs "\"event\":\"step\",\"step\":$last," "$log"; do
        kill -0 "$run" 2>/dev/null || { wait "$run"; return 1; }
        sleep 0.2
    done
    local used=""
    if ! tiny && command -v nvidia-smi >/dev/null; then
        used=$(nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader | awk -F, -v pid="$run" '$1 == pid { print ", the driver counts" $2 }') || true
    fi
    kill -KILL "$run"
    wait "$run" 2>/dev/null || true
    grep '"event":"step"' "$log" >"$out/train.steps"
    local planned
    planned=$(grep -o '"planned_bytes":[0-9]*' "$log" | head -1 | cut -d: -f2)
    local goal=0  # tokens/s, of an H200
    if ! tiny && [[ "$("$keel" devices)" == *H200* ]]; then goal=60000; fi
    # The median of the steps after the first five; MFU of the model's 7.817 GFLOP a token against 989 TFLOP/s.
    awk -v planned="$planned" -v used="$used" -v tiny="$size" -v goal="$goal" -F'"tokens_per_second":' '
        function loss(line) { sub(/.*"loss":/, "", line); return line + 0 }
        NR == 1 { first = loss($0) }
        { last = loss($0); if (NR > 5 || tiny == "tiny") rate[++n] = $2 + 0 }
        END {
            for (i = 1; i <= n; ++i) for (j = i + 1; j <= n; ++j) if (rate[j] < rate[i]) { t = rate[i]; rate[i] = rate[j]; rate[j] = t }
            m = rate[int((n + 1) / 2)]
            printf "%.0f tokens/s, MFU %.1f %%; loss %.3f to %.3f in %d steps; planned %.3g GiB%s\n", m, m * 7.817e9 / 989e10, first, last, NR, planned / 2^30, used
            exit last < first ? (m >= goal ? 0 : 3) : 1
        }' "$out/train.steps"
}
determinism() {  # five steps: twice as a graph, once queued
    text_to_tokens
    local shape=(--model.hidden 768 --model.layers 6 --model.heads 12 --model.ffn 2048 --data.seq_len 1024 --train.micro_batch 8 --train.global_batch 32)
    if tiny; then
        shape=(--model.hidden 32 --model.layers 1 --model.heads 4 --model.kv_heads 2 --model.ffn 64 --data.seq_len 32 --train.micro_batch 1 --train.global_batch 2)
    fi
    local run file saved
    for run in once twice queued; do
        run_in "$run" "${shape[@]}" --train.steps 5 --run.graph "$([[ $run == queued ]] && echo false || echo true)"
        "${command[@]}"
    done
    for run in twice queued; do
        for file in weights optimizer; do
            saved=checkpoints/step-00000005/$file.safetensors
            cmp "$out/once/$saved" "$out/$run/$saved" || { echo "$run differs from the first run in $file"; return 1; }
        done
    done
    rm -rf "$out/once" "$out/twice" "$out/queued"
    echo "weights and moments of five steps have the same bits twice, and queued"
}
sanitizer() {
    if tiny; then echo "not on cudasim, which looks by itself"; return 77; fi
    command -v compute-sanitizer >/dev/null || { echo "there is no compute-sanitizer here"; return 77; }
    local tool
    for tool in memcheck racecheck; do
        KEEL_TEST_DEVICE=cuda compute-sanitizer --tool "$tool" --error-exitcode 9 "$kernels_test" \
            --gtest_filter='AttentionCuda.*Reference:AttentionHopper.*Reference:CrossEntropyCuda.*Whole*:EmbeddingCuda.Gathers*:ExactSumCuda.Adds*:HashCuda.*:RmsnormCuda.*' \
            | tee "$out/tests.log" || return 1
        passed "tests by $tool, which finds nothing" || return
    done
}

if [[ -n $inner ]]; then  # one section, as the loop below calls it
    "$inner"
    exit
fi

# ---- one after the other --------------------------------------------------------------------------------------------

for program in "$keel" "$check" "$conformance_test" "$kernels_test"; do
    [[ -x $program ]] || die "$program is not there: cmake --build $build --target keel gpu_check test_conformance test_sim_kernels"
done
"$check" device "$device" "$size" - || exit $?
mkdir -p "$out"
out=$(cd -- "$out" && pwd -P)
# What a section measured, as JSON: also what one had when it was stopped.
rows_of() {
    local steps=$out/train/log.jsonl
    if [[ $1 == train && -s $steps ]]; then
        printf '['
        { grep '"event":"step".*}$' "$steps" || true; } | paste -sd,
        printf ']'
    else
        cat "$out/$1.detail" 2>/dev/null || echo null
    fi
}
wanted() { ((${#only[@]} == 0)) || [[ " ${only[*]} " == *" $1 "* ]]; }
for name in "${only[@]}"; do [[ " ${sections[*]} " == *" $name:"* ]] || die "no section is called $name; there are ${sections[*]%:*}"; done

bad=0 table=()
for section in "${sections[@]}"; do
    name=${section%:*} limit=${section#*:}
    wanted "$name" || continue
    if tiny; then limit=$((10 * limit)); fi  # a busy machine is no failure of the check
    printf '%s …\n' "$name"
    rm -f "$out/$name".{detail,json}
    if [[ $name == train ]]; then rm -rf "$out/train"; fi
    begin=$EPOCHREALTIME code=0
    timeout --kill-after=2 "$limit" "$0" --inner "$name" --build "$build" --out "$out" --device "$device" >"$out/$name.log" 2>&1 || code=$?
    took=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    case $code in
        0) status=good ;;
        77) if [[ $name == sanitizer || $name == hopper ]]; then status=skipped; else status=bad; fi ;;
        3) status=slow ;;
        124 | 137) status="stopped by limit" ;;
        *) status=bad ;;
    esac
    [[ $status == good || $status == skipped ]] || bad=1
    summary=$(tail -n 1 "$out/$name.log" | tr -d '\000-\037')
    if [[ $status == stopped* ]]; then summary="after $limit s; what it had by then is in $name.json, what it said last: $summary"; fi
    quoted=${summary//\\/\\\\}
    printf '{"section": "%s", "device": "%s", "size": "%s", "status": "%s", "exit": %d, "seconds": %s, "summary": "%s", "rows": %s}\n' "$name" "$device" "$size" \
        "$status" "$code" "$took" "${quoted//\"/\\\"}" "$(rows_of "$name")" >"$out/$name.json"
    rm -f "$out/$name.detail"
    table+=("$(printf '%-12s %-16s %6s s  %s' "$name" "$status" "$took" "$summary")")
done
printf '\n'
printf '%s\n' "${table[@]}" | tee "$out/table.txt"
exit $bad
