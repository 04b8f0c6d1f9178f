#!/usr/bin/env bash
# The same training run with and without recorded microbatches (CUDA graphs): every loss and gradient norm to its last digit.
#
#   tests/gpu/graphs.sh WEFT
set -uo pipefail
weft=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$(dirname "$0")/../.."
nvidia-smi -L >/dev/null 2>&1 || { echo "graphs: no GPU here"; exit 77; }

"$weft" tokenizer train --input README.md --vocab-size 300 --out "$work/tokenizer.json" 2>/dev/null || exit 1
common=(train --text-file README.md --tokenizer-model "$work/tokenizer.json" --data-cache-path "$work" --num-layers 3 --hidden-size 128
  --num-attention-heads 2 --seq-length 64 --max-position-embeddings 64 --eval-interval 3 --eval-iters 1 --lr 1e-3
  --lr-decay-style constant --seed 7 --device cuda --ranks 1 --deterministic-mode --hidden-dropout 0 --attention-dropout 0)
gpt=(--position-embedding-type learned_absolute --normalization LayerNorm)
llama=(--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --num-query-groups 1
  --untie-embeddings-and-output-weights)
cases=(
  "--global-batch-size 4 --micro-batch-size 4"
  "--global-batch-size 12 --micro-batch-size 4"
  "--global-batch-size 12 --micro-batch-size 4 --fp32"
  "--global-batch-size 12 --micro-batch-size 4 --fp16 --initial-loss-scale 65536 --loss-scale-window 3"
  "--global-batch-size 8 --micro-batch-size 2 --no-calculate-per-token-loss"
  "--global-batch-size 8 --micro-batch-size 2 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
  "--global-batch-size 8 --micro-batch-size 2 --rampup-batch-size 2 2 16 --train-samples 60"
)

failed=0
for model in gpt llama; do
  declare -n options=$model
  for words in "${cases[@]}"; do
    read -r -a more <<<"$words"
    [[ $words == *--train-samples* ]] || more+=(--train-iters 8)
    for way in none local; do
      rm -f "$work/$way"
      timeout -k 5 60 "$weft" "${common[@]}" "${options[@]}" "${more[@]}" --cuda-graph-impl $way --metrics "$work/$way" \
        >"$work/out" 2>"$work/err" </dev/null || { grep '^weft' "$work/err" | head -3; }
      sed -E 's/"(step_ms|tokens_per_second|tflops_per_device|mfu|seconds)": [^,}]*//g' "$work/$way" >"$work/$way.numbers" 2>/dev/null
    done
    if [[ -s $work/none.numbers ]] && cmp -s "$work/none.numbers" "$work/local.numbers"; then
      echo "ok     $model $words"
    else
      echo "FAILED $model $words"
      diff "$work/none.numbers" "$work/local.numbers" | head -4 | cut -c1-300
      failed=$((failed + 1))
    fi
  done
done
echo "$failed failed"
[[ $failed == 0 ]]
