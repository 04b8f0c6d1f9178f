#!/usr/bin/env bash
# The same training run on one rank and on many layouts of GPU ranks: losses and gradient norms must agree.
#
#   tests/gpu/layouts.sh WEFT [LAYOUT-NUMBER...]
#
# How ranks are started: launch.sh.
set -uo pipefail
weft=$(realpath "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$(dirname "$0")/../.."
. tests/gpu/launch.sh
[[ $gpus -gt 0 ]] || { echo "layouts: no GPU here"; exit 77; }

"$weft" tokenizer train --input README.md --vocab-size 300 --out "$work/tokenizer.json" 2>/dev/null || exit 1
common=(train --text-file README.md --tokenizer-model "$work/tokenizer.json" --data-cache-path "$work" --num-layers 4 --hidden-size 96
  --num-attention-heads 12 --ffn-hidden-size 192 --seq-length 48 --max-position-embeddings 48 --global-batch-size 12
  --micro-batch-size 1 --train-iters 6 --eval-iters 0 --lr 1e-3 --lr-decay-style constant --clip-grad 1.0 --seed 7 --device cuda)
llama=(--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --num-query-groups 4
  --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0)
gpt=(--position-embedding-type learned_absolute --normalization LayerNorm --hidden-dropout 0.1 --attention-dropout 0.1)

# ranks | options
layouts=(
  "2|--tensor-model-parallel-size 2"
  "2|--tensor-model-parallel-size 2 --sequence-parallel"
  "2|--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap"
  "2|--pipeline-model-parallel-size 2"
  "2|--pipeline-model-parallel-size 2 --pipeline-schedule interleaved --num-virtual-stages-per-pipeline-rank 2"
  "2|--pipeline-model-parallel-size 2 --pipeline-schedule zb-h1"
  "2|--pipeline-model-parallel-size 2 --pipeline-schedule zb-v"
  "2|--pipeline-model-parallel-size 2 --pipeline-schedule gpipe --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
  "2|"
  "2|--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 20000"
  "4|--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2"
  "4|--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce"
  "8|--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 --pipeline-schedule interleaved --num-virtual-stages-per-pipeline-rank 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
  "8|--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1 --use-distributed-optimizer"
  "2|--context-parallel-size 2"
  "2|--context-parallel-size 2 --cp-comm-type all_gather"
  "2|--context-parallel-size 2 --cp-comm-type a2a"
  "4|--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2"
  "4|--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel"
  "4|--context-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer"
  "3|--context-parallel-size 3 --cp-comm-type all_gather p2p p2p all_gather"
)

run() {  # metrics-file ranks options...
  local metrics=$1 ranks=$2
  shift 2
  rm -f "$metrics"
  launch_ranks "$ranks" "${LIMIT:-100}" "$weft" "${common[@]}" --metrics "$metrics" "$@" >"$work/out" 2>"$work/err" </dev/null
}

failed=0
for model in ${MODELS:-llama gpt}; do
  declare -n options=$model
  for precision in fp32; do
    run "$work/$model.one" 1 "${options[@]}" --$precision || { echo "FAILED $model on one rank"; tail -5 "$work/err"; exit 1; }
    numbers=("$@")
    [[ $# -gt 0 ]] || numbers=("${!layouts[@]}")
    for number in "${numbers[@]}"; do
      IFS='|' read -r ranks words <<<"${layouts[$number]}"
      read -r -a more <<<"$words"
      begin=$SECONDS
      if run "$work/many" "$ranks" "${options[@]}" --$precision "${more[@]}" && text=$(compare_metrics "$work/$model.one" "$work/many" 2e-6 2e-5); then
        echo "ok     $model $precision $number ranks $ranks $words: $text ($((SECONDS - begin)) s)"
      else
        echo "FAILED $model $precision $number ranks $ranks $words: ${text:-}"
        { grep '^weft' "$work/err" || tail -6 "$work/err"; } | head -6 | cut -c1-600
        failed=$((failed + 1))
      fi
      text=""
    done
  done
done
echo "$failed failed"
[[ $failed == 0 ]]
