#!/usr/bin/env bash
# Generation on GPUs: greedy tokens of a tiny model equal those of the CPU, in fp32; and bf16, the default there, runs.
#
#   tests/gpu/generate.sh WEFT
#
# With several GPUs tensor-parallel ranks are held against one rank too.
set -uo pipefail
weft=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$(dirname "$0")/../.."
gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
if [[ $gpus == 0 && -z "${GENERATE_DEVICE:-}" ]]; then
  echo "generate: no GPU here"
  exit 77
fi
device=${GENERATE_DEVICE:-cuda}  # cpu: to try this script where there is no GPU

"$weft" tokenizer train --input README.md --vocab-size 300 --out "$work/tokenizer.json" 2>/dev/null || exit 1
# Large weights: the most probable token is far from the next one.
common=(train --text-file README.md --tokenizer-model "$work/tokenizer.json" --data-cache-path "$work" --num-layers 3 --hidden-size 96
  --num-attention-heads 12 --ffn-hidden-size 192 --seq-length 48 --max-position-embeddings 700 --global-batch-size 4
  --micro-batch-size 2 --train-iters 2 --eval-iters 0 --lr 1e-3 --lr-decay-style constant --seed 7 --init-method-std 0.3
  --hidden-dropout 0 --attention-dropout 0 --device cpu)
llama=(--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --num-query-groups 4
  --untie-embeddings-and-output-weights)
gpt=(--position-embedding-type learned_absolute --normalization LayerNorm)

# Unequal prompts, one of them of several pieces of 256 tokens.
{
  echo "The"
  echo "Weft trains GPT-family models"
  echo "A step, from above: each data-parallel rank reads its microbatches"
  for _ in $(seq 40); do printf 'one rank after the other '; done
  echo
} >"$work/prompts"

failed=0
generate() {  # model device tokens-file options...
  timeout -k 5 120 "$weft" generate --load "$work/$1" --prompt-file "$work/prompts" --max-new-tokens 40 --temperature 0 --ignore-eos \
    --device "$2" --tokens-out "$3" "${@:4}" >"$work/out" 2>"$work/err" </dev/null
}
expect() {  # name model options...: the tokens of the CPU
  rm -f "$work/tokens"
  if generate "$2" "$device" "$work/tokens" "${@:3}" && cmp -s "$work/tokens" "$work/$2.cpu"; then
    echo "ok     $1"
  else
    echo "FAILED $1"
    diff <(tr ' ' '\n' <"$work/$2.cpu") <(tr ' ' '\n' <"$work/tokens" 2>/dev/null) | head -5
    grep '^weft' "$work/err" | head -4 | cut -c1-600
    failed=$((failed + 1))
  fi
}

for model in llama gpt; do
  declare -n options=$model
  "$weft" "${common[@]}" "${options[@]}" --save "$work/$model" >"$work/out" 2>"$work/err" ||
    { echo "FAILED to train $model"; tail -5 "$work/err"; exit 1; }
  generate "$model" cpu "$work/$model.cpu" --dtype fp32 ||
    { echo "FAILED $model on the CPU"; tail -5 "$work/err"; exit 1; }
  expect "$model fp32" "$model" --dtype fp32
  if [[ $gpus -ge 2 || $device == cpu ]]; then
    expect "$model fp32, 2 tensor-parallel ranks" "$model" --dtype fp32 --tensor-model-parallel-size 2
  fi
  if [[ $gpus -ge 4 || $device == cpu ]]; then
    expect "$model fp32, 4 tensor-parallel ranks" "$model" --dtype fp32 --tensor-model-parallel-size 4
  fi
  # Not the same tokens, but as many, and the same prompts before them.
  words() { awk '{ print NF, $1, $2 }' "$1"; }
  for dtype in default bf16 fp16; do
    chosen=()
    [[ $dtype == default ]] || chosen=(--dtype "$dtype")
    if generate "$model" "$device" "$work/tokens" "${chosen[@]}" && [[ $(words "$work/tokens") == "$(words "$work/$model.cpu")" ]] &&
      { [[ $dtype != default || $device == cpu ]] || grep -qi "cuda in bf16" "$work/err"; }; then
      echo "ok     $model $dtype ($(grep -o '[0-9.]* tokens/s' "$work/err"))"
    else
      echo "FAILED $model $dtype"
      grep '^weft' "$work/err" | head -4 | cut -c1-600
      failed=$((failed + 1))
    fi
  done
done
echo "$failed failed"
[[ $failed == 0 ]]
