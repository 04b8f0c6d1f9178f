#!/usr/bin/env bash
# scripts/bench.sh BUILD [JOBS]: `weft bench` on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
cmake --build "$build" --parallel "${2:-2}" --target weft
if ! "$build/weft" --help | grep -E '^ +bench ' >/dev/null; then
  echo "bench: this build of weft has no bench command yet"
  exit 0
fi
for what in op step; do "$build/weft" bench "$what"; done
