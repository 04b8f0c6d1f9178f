#!/usr/bin/env bash
# 32 768 tokens in one sequence, on one rank and cut over four by every method: losses and gradient norms in bf16 must agree within
# its rounding, and so must a model with a sliding window. How ranks are started: launch.sh.
#
#   tests/gpu/context.sh WEFT [TOKENS]
set -uo pipefail
weft=$(realpath "$1")
tokens=${2:-32768}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$(dirname "$0")/../.."
. tests/gpu/launch.sh
[[ $gpus -gt 0 ]] || { echo "context: no GPU here"; exit 77; }

cat src/*/*.cpp src/*/*.hpp >"$work/text"
"$weft" tokenizer train --input "$work/text" --vocab-size 400 --out "$work/tokenizer.json" 2>/dev/null || exit 1
common=(train --text-file "$work/text" --tokenizer-model "$work/tokenizer.json" --data-cache-path "$work" --num-layers 2
  --hidden-size 512 --num-attention-heads 8 --num-query-groups 4 --ffn-hidden-size 1024 --seq-length "$tokens"
  --max-position-embeddings "$tokens" --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear
  --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 --global-batch-size 1 --micro-batch-size 1
  --train-iters 3 --eval-iters 0 --lr 1e-3 --lr-decay-style constant --seed 7 --device cuda --bf16)
methods=("p2p" "all_gather" "a2a" "a2a+p2p --hierarchical-context-parallel-sizes 2 2")

failed=0
for window in 0 5000; do
  rm -f "$work/one"
  "$weft" "${common[@]}" --sliding-window $window --ranks 1 --metrics "$work/one" >"$work/out" 2>"$work/err" </dev/null ||
    { grep '^weft' "$work/err" | head -3; exit 1; }
  for method in "${methods[@]}"; do
    rm -f "$work/many"
    begin=$SECONDS
    read -r -a words <<<"$method"
    if launch_ranks 4 100 "$weft" "${common[@]}" --sliding-window $window --context-parallel-size 4 --cp-comm-type "${words[@]}" \
      --metrics "$work/many" >"$work/out" 2>"$work/err" </dev/null && text=$(compare_metrics "$work/one" "$work/many" 5e-4 1e-2); then
      echo "ok     $tokens tokens, window $window, cp 4 $method: $text ($((SECONDS - begin)) s)"
    else
      echo "FAILED $tokens tokens, window $window, cp 4 $method: ${text:-}"
      { grep '^weft' "$work/err" || tail -6 "$work/err"; } | head -6 | cut -c1-600
      failed=$((failed + 1))
    fi
    text=""
  done
done
echo "$failed failed"
[[ $failed == 0 ]]
