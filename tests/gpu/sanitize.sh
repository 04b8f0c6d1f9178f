#!/usr/bin/env bash
# The tests of CUDA operations under compute-sanitizer: memcheck over all, racecheck over our own kernels (cuDNN's use barriers that
# it does not know). In parts side by side, each for a limited time: what a part has not reached is said, not counted as clean.
#
#   tests/gpu/sanitize.sh WEFT_CUDA_OPS_TESTS [SECONDS] [PARTS] [TOOL...]        240 s, 8 parts of each tool
set -uo pipefail
tests=$(realpath "$1")
seconds=${2:-240}
parts=${3:-8}
tools=("${@:4}")
[[ ${#tools[@]} -gt 0 ]] || tools=(memcheck racecheck)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvidia-smi -L >/dev/null 2>&1 || { echo "sanitize: no GPU here"; exit 77; }
command -v compute-sanitizer >/dev/null || { echo "sanitize: no compute-sanitizer (part of the CUDA toolkit)"; exit 77; }

# The death test ends a process on purpose.
declare -A filter=([memcheck]='-CudaFailures.*' [racecheck]='-CudaFailures.*:*Cudnn*:*Gemm*')
for tool in "${tools[@]}"; do
  "$tests" --gtest_list_tests --gtest_filter="${filter[$tool]}" | grep -c '^  ' >"$work/$tool.count"
  for ((i = 0; i < parts; ++i)); do
    GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$i timeout -k 5 "$seconds" compute-sanitizer --tool $tool --error-exitcode 9 \
      "$tests" --gtest_filter="${filter[$tool]}" >"$work/$tool.$i" 2>&1 &
  done
done
wait
failed=0
for tool in "${tools[@]}"; do
  of=$(cat "$work/$tool.count")
  cat "$work/$tool".[0-9]* >"$work/all"
  done_=$(grep -c '^\[       OK ' "$work/all")
  errors=$(grep -cE '^========= (Invalid|Error|Warning|Program hit|Uninitialized|Race)' "$work/all")
  echo "$tool: $done_ of $of tests passed in time, $errors reports"
  grep -E '^========= (Invalid|Error|Warning|Program hit|Uninitialized|Race)' "$work/all" | sort | uniq -c | sort -rn | head -10
  comm -23 <(grep -oE '^\[ RUN      \] [^ ]+' "$work/all" | sed 's/.*\] //' | sort) \
    <(grep -oE '^\[       OK \] [^ ]+' "$work/all" | sed 's/.*\] //' | sort) | sed 's/^/  not finished: /'
  [[ $errors == 0 && $done_ == "$of" ]] || failed=1
done
exit $failed
