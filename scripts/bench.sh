#!/usr/bin/env bash
# scripts/bench.sh BUILD [JOBS]: every benchmark of bench/ (bench/NAME_bench.cpp is the program NAME_bench).
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
programs=()
for source in bench/*_bench.cpp; do programs+=("$(basename "$source" .cpp)"); done
cmake -S . -B "$build" -DWEFT_BENCH=ON >/dev/null
cmake --build "$build" --parallel "${2:-2}" --target "${programs[@]}"
for program in "${programs[@]}"; do "$build/$program"; done
