#!/usr/bin/env bash
# The demo, step by step: a King James Bible becomes a tokenizer, a training run on four ranks of this one process, a
# loss curve and a paragraph of new text. `make demo` calls it after installing and building; nothing is downloaded.
#
#   WEFT=build/weft OUT=demo-run RANKS=4 ITERS=600 scripts/demo.sh
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-build/weft}
out=${OUT:-demo-run}
ranks=${RANKS:-4}
iters=${ITERS:-600}
started=${STARTED:-$(date +%s)}

step() { printf '\n== %s\n' "$*"; }
mkdir -p "$out"
rm -rf "$out"/{bible.txt*,tokenizer.json,metrics.*,checkpoint,results.txt,generated.txt}

step "the text"
bible -f gen1:1-rev22:21 >"$out/bible.txt"
wc -lwc "$out/bible.txt"

step "a byte-level BPE tokenizer of 4096 tokens"
"$weft" tokenizer train --input "$out/bible.txt" --vocab-size 4096 --out "$out/tokenizer.json"
printf 'In the beginning God created' | "$weft" tokenizer encode --tokenizer "$out/tokenizer.json"

step "training: presets/demo.toml, $iters steps, $ranks ranks as threads of one process"
"$weft" train --preset demo --text-file "$out/bible.txt" --tokenizer-model "$out/tokenizer.json" --split 95,5,0 \
  --ranks "$ranks" --train-iters "$iters" --metrics "$out/metrics.jsonl" --save "$out/checkpoint" |
  tee "$out/results.txt"

# result NAME: the last NAME=value line that training printed; empty when there is none.
result() { sed -n "s/^$1=//p" "$out/results.txt" | tail -n 1; }
echo "loss curve: $out/metrics.svg"

step "new text"
"$weft" generate --load "$out/checkpoint" --prompt "And it came to pass" --max-new-tokens 120 \
  --temperature 0.8 --top-k 40 --seed 1 | tee "$out/generated.txt"
echo

summary="demo ok:"
for name in valid_loss unigram bigram bits_per_byte tokens_per_second; do
  value=$(result "$name")
  [[ -n $value ]] || { echo "demo failed: training printed no $name" >&2; exit 1; }
  summary+=" $name=$value"
done
# A model that has learned more than word pairs beats the table of word pairs clearly.
LC_ALL=C awk -v valid="$(result valid_loss)" -v bigram="$(result bigram)" 'BEGIN { exit !(valid + 0.3 <= bigram + 0) }' ||
  { echo "demo failed: validation loss $(result valid_loss) is not 0.3 below the bigram table's $(result bigram)" >&2; exit 1; }
echo "$summary seconds=$(($(date +%s) - started))"
