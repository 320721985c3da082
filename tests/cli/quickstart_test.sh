#!/usr/bin/env bash
# The quickstart on a small text of its own, twice, from another folder, into a path with spaces, through a pipe: it trains, beats
# nobody yet, leaves its report, and the second time reuses what is there. $1 is the root of the checkout.
set -euo pipefail

root=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/keel quickstart XXXXXX")
trap 'rm -rf "$work"' EXIT
cat "$root"/docs/*.md "$root"/README.md "$root"/kernels/*.h >"$work/my text.txt"

run() { (cd "$work" && bash "$root/cli/quickstart.sh" --text "my text.txt" --epochs 1 --dir "$work/made here" </dev/null 2>&1 | cat); }
expect() { grep -qE -- "$2" <<<"$1" || { printf 'expected "%s" in:\n%s\n' "$2" "$1" >&2; exit 1; }; }

first=$(run)
expect "$first" 'step [0-9]+/[0-9]+ .* loss [0-9.]+ '
expect "$first" 'keel +[0-9]+\.[0-9]{3} bits per byte +perplexity'
expect "$first" 'zstd -19 +[0-9]+\.[0-9]{3} bits per byte'
expect "$first" 'What to type next'
test -s "$work/made here/run/report.html"
losses=$(sed -n 's/^step .* loss \([0-9.]*\) .*/\1/p' <<<"$first")
awk 'NR == 1 { a = $1 } { b = $1 } END { exit !(b < a) }' <<<"$losses" || { printf 'the loss did not fall:\n%s\n' "$losses" >&2; exit 1; }

second=$(run)
if grep -qE '^step ' <<<"$second"; then printf 'trained again:\n%s\n' "$second" >&2; exit 1; fi
expect "$second" 'bits per byte'
