#!/usr/bin/env bash
# A traced run of two stages, read by read_outputs.py. Exit code 77, "skipped", where Python or a package it needs is missing.
#   read_outputs_test.sh SOURCE_DIR KEEL
set -euo pipefail
command -v python3 >/dev/null || { echo "not read: no python3"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
{ "$2" tokenizer train "$1"/docs/*.md --vocab 300 --out "$dir/tok"
  "$2" tokenize "$1"/docs/*.md --tokenizer "$dir/tok" --out "$dir/data.tok"
  "$2" train --model.hidden 32 --model.layers 2 --model.heads 2 --model.ffn 64 --model.vocab 300 --data.train "$dir/data.tok" \
       --data.seq_len 64 --train.global_batch 4 --train.micro_batch 1 --train.steps 8 --parallel.pp 2 \
       --observe.trace_steps 3 5 --run.dir "$dir/run"; } >"$dir/said" 2>&1 || { cat "$dir/said"; exit 1; }
python3 "$1/tests/cli/read_outputs.py" "$dir/run"
