#!/usr/bin/env bash
# cli/quickstart.sh: from nothing to a trained model on this machine, in one command: installs what is missing, builds keel,
# trains on real text, shows the falling loss, a sample of its own and a report. What exists already is reused.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: cli/quickstart.sh [--text FILE...] [--dir FOLDER] [--epochs N] [--fresh]

  --text FILE...   train on these plain-text files (a blank line ends a document) instead of the King James Bible
  --dir FOLDER     where everything is written; default: quickstart/ beside the README
  --epochs N       passes over the text; default 2, about three minutes on two cores for the King James Bible
  --fresh          forget what an earlier call made in that folder, and begin again
TEXT
}

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck source=cli/setup.sh
source "$root/cli/setup.sh"

text=() dir="$root/quickstart" epochs=2 fresh=false
while (($# > 0)); do
    case $1 in
        --text)
            shift
            while (($# > 0)) && [[ $1 != --* ]]; do text+=("$1"); shift; done
            ((${#text[@]} > 0)) || die "--text needs at least one file"
            ;;
        --dir) (($# > 1)) || die "--dir needs a folder"; dir=$2; shift 2 ;;
        --epochs) (($# > 1)) || die "--epochs needs a number"; epochs=$2; shift 2 ;;
        --fresh) fresh=true; shift ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; die "unknown option $1" ;;
    esac
done
[[ $epochs =~ ^[1-9][0-9]*$ ]] || die "--epochs $epochs: this must be a whole number of at least 1"
for file in "${text[@]}"; do
    [[ -f $file && -r $file ]] || die "--text $file: there is no such file to read"
    [[ $file != *.jsonl && $file != *.zst ]] || die "--text $file: this takes plain text; \`keel tokenize\` reads JSON lines and zstd"
done

packages=("${build_packages[@]}" zstd)
((${#text[@]} > 0)) || packages+=(bible-kjv)
need_packages "${packages[@]}"
build "$root" keel
keel="$root/build/keel"

if $fresh; then
    for made in corpus.txt corpus.txt.from tail.txt tokenizer train.tok valid.tok run; do rm -rf "${dir:?}/$made"; done
fi
mkdir -p -- "$dir" || die "--dir $dir cannot be made; name a folder you may write to"
dir=$(cd -- "$dir" && pwd -P)
[[ -w $dir ]] || die "--dir $dir cannot be written; name a folder you may write to"

# ---- 1. text: one document per chapter, a blank line between two
from="bible-kjv"
((${#text[@]} == 0)) || from=$(cksum -- "${text[@]}")
if [[ ! -f $dir/corpus.txt || $(cat "$dir/corpus.txt.from" 2>/dev/null) != "$from" ]]; then
    say "Text"
    rm -rf "$dir/tokenizer" "$dir/run" "$dir/train.tok" "$dir/valid.tok" "$dir/tail.txt"
    if ((${#text[@]} > 0)); then
        for file in "${text[@]}"; do cat -- "$file"; printf '\n\n'; done >"$dir/corpus.part"
    else
        # One verse per line, "Ge1:1 In the beginning…"; a new chapter begins a new document.
        bible -f gen1:1-rev22:21 | awk '{
            split($1, at, ":")
            if (NR > 1 && at[1] != chapter) print ""
            chapter = at[1]
            sub(/^[^ ]+ /, "")
            print
        }' >"$dir/corpus.part"
    fi
    [[ -s $dir/corpus.part ]] || die "the text is empty"
    mv -- "$dir/corpus.part" "$dir/corpus.txt"
    printf '%s' "$from" >"$dir/corpus.txt.from"
fi
printf '%s: %s bytes\n' "$dir/corpus.txt" "$(stat -c %s "$dir/corpus.txt")"

# ---- 2. tokenizer and token files; the last 5 % of the text is held out from both
as_documents=(--split-at-blank-lines true)
if [[ ! -f $dir/tokenizer/tokenizer.json ]]; then
    say "Tokenizer: byte-level BPE, learned from the training part alone"
    "$keel" tokenizer train --vocab 4096 --skip-tail 5% "${as_documents[@]}" --out "$dir/tokenizer" "$dir/corpus.txt"
fi
if [[ ! -f $dir/train.tok || ! -f $dir/valid.tok || ! -f $dir/tail.txt ]]; then
    say "Token files"
    "$keel" tokenize --tokenizer "$dir/tokenizer" --out "$dir/train.tok" --valid-tail 5% --valid-out "$dir/valid.tok" \
        --valid-text "$dir/tail.txt" "${as_documents[@]}" "$dir/corpus.txt"
fi

# ---- 3. training: settings that fit 5 million parameters, one million tokens and three minutes
seq_len=256 global_batch=8
tokens=$(od -An -t d8 -j 16 -N 8 "$dir/train.tok" | tr -d ' ')  # the header's count; `keel inspect` shows all of it
samples=$((tokens * epochs / seq_len))
((samples > 0)) || die "the text has only $tokens tokens; give at least a few pages"
prompt=$(awk 'NF { print $1, $2, $3; exit }' "$dir/corpus.txt")
settings="$epochs epochs of $tokens tokens"
if [[ -d $dir/run && $(cat "$dir/run/quickstart.txt" 2>/dev/null) != "$settings" ]]; then
    say "The run in $dir/run was made with other settings; it begins anew"
    rm -rf "$dir/run"
fi
mkdir -p "$dir/run"
printf '%s' "$settings" >"$dir/run/quickstart.txt"
say "Training a model of 5 million parameters: $settings"
"$keel" train --model.preset tiny --model.vocab 0 \
    --data.train "$dir/train.tok" --data.valid "$dir/valid.tok" --data.tokenizer "$dir/tokenizer" --data.seq_len $seq_len \
    --train.samples $samples --train.global_batch $global_batch --train.log_interval 20 --train.eval_interval 240 \
    --train.sample_prompt "$prompt" --ckpt.interval 240 \
    --optim.lr 2e-3 --optim.min_lr 1e-4 --optim.beta2 0.98 --optim.warmup_samples $((samples / 20)) --run.dir "$dir/run"

# ---- 4. what it is worth: bits per byte on text that neither tokenizer nor model has seen, beside a good compressor
say "Held-out text: the last 5 %, which neither the tokenizer nor the model has seen"
result=$("$keel" eval "$dir/run" --data "$dir/valid.tok" --json)
field() { sed -n "s/.*\"$1\": *\([-+.0-9eE]*\).*/\1/p" <<<"$result"; }
tail_bytes=$(stat -c %s "$dir/tail.txt")
body_bytes=$(($(stat -c %s "$dir/corpus.txt") - tail_bytes))
alone=$(zstd -q -19 -c "$dir/tail.txt" | wc -c)
row() { LC_ALL=C awk -v what="$1" -v bits="$2" -v note="$3" 'BEGIN { printf "  %-34s %6.3f bits per byte   %s\n", what, bits, note }'; }
bits() { LC_ALL=C awk -v compressed="$1" -v bytes="$2" 'BEGIN { print 8 * compressed / bytes }'; }
printf '  %s bytes of text\n' "$tail_bytes"
row "keel" "$(field bits_per_byte)" "perplexity $(LC_ALL=C printf %.2f "$(field perplexity)") per token"
row "zstd -19" "$(bits "$alone" "$tail_bytes")" "of the same text alone"
if ((body_bytes < 100000000)); then
    head -c "$body_bytes" "$dir/corpus.txt" >"$dir/body.part"
    knowing=$(zstd -q -19 --patch-from="$dir/body.part" -c "$dir/tail.txt" 2>/dev/null | wc -c)
    rm -f "$dir/body.part"
    row "zstd -19, training text given" "$(bits "$knowing" "$tail_bytes")" "as --patch-from"
fi
printf '  (The size of the model itself is counted for neither; zstd needs none.)\n'

say "A sample"
"$keel" generate "$dir/run" --prompt "$prompt" --max-tokens 120 --temperature 0.8 --seed 1

# ---- 5. onwards
quoted() { printf '%q' "$1"; }
say "Done"
cat <<TEXT
The report, with curves, memory and time:
  $dir/run/report.html

What to type next:
  $(quoted "$keel") generate $(quoted "$dir/run") --prompt "And it came to pass" --temperature 0.7
  $(quoted "${BASH_SOURCE[0]}") --epochs $((epochs * 3))
  $(quoted "${BASH_SOURCE[0]}") --text book1.txt book2.txt
  $(quoted "$keel") estimate --model.preset llama-3.2-1b --data.seq_len 2048
  $(quoted "$keel") train --help
TEXT
