#!/usr/bin/env bash
# The job script of docs/operations.md, with commands in place of Slurm's: it is requeued until the run is done, not after that, and
# not where another start has nothing to gain.
#   slurm_script_test.sh SOURCE_DIR
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
sed -n '/^```bash$/,/^```$/p' "$1/docs/operations.md" | sed '/^```/d' > "$dir/job.sh"
grep -q '^#SBATCH' "$dir/job.sh" || { echo "docs/operations.md has no job script"; exit 1; }
mkdir "$dir/bin" "$dir/run"
printf '#!/bin/sh\necho "{\\"event\\":\\"end\\",\\"why\\":\\"$WHY\\"}" >> "$RUN/log.jsonl"\nexit $CODE\n' > "$dir/bin/srun"
printf '#!/bin/sh\necho "$@" >> "$RUN/requeued"\n' > "$dir/bin/scontrol"
chmod +x "$dir/bin/"*

expect() {  # WHY CODE, the script's code, what was asked of scontrol
  rm -f "$dir/run/requeued"
  local code=0
  env PATH="$dir/bin:$PATH" RUN="$dir/run" SLURM_JOB_ID=7 WHY="$1" CODE="$2" bash "$dir/job.sh" || code=$?
  local asked; asked=$(cat "$dir/run/requeued" 2>/dev/null || true)
  [[ $code == "$3" && $asked == "$4" ]] || { echo "after $1 with code $2: code $code, asked \"$asked\""; exit 1; }
}
expect time 0 0 "requeue 7"
expect signal 0 0 "requeue 7"
expect "" 1 0 "requeue 7"
expect "" 18 0 "requeue 7"
expect "" 16 0 "requeue 7"
expect "" 2 2 ""
expect fault 17 17 ""
expect "" 19 19 ""
expect done 0 0 ""
