#!/usr/bin/env bash
# scripts/bench.sh BUILD [JOBS]: `weft bench` on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
cmake --build "$build" --parallel "${2:-2}" --target weft
for what in op step; do "$build/weft" bench "$what"; done
