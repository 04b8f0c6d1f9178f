#!/usr/bin/env bash
# scripts/figures.sh: the figures of the house in docs/architecture.md, measured. Functions need lizard
# (pip install lizard); without it they are left out.
set -euo pipefail
cd "$(dirname "$0")/.."

lines() { cat "$@" | wc -l; }
longest() { wc -l "$@" | grep -v ' total$' | sort -rn | head -1 | awk '{print $1 " (" $2 ")"}'; }
mapfile -t sources < <(git ls-files 'src/*.hpp' 'src/*.cpp' 'src/*.cu' 'src/*.cuh')
mapfile -t tests < <(git ls-files 'tests/*.hpp' 'tests/*.cpp' 'tests/*.cuh' 'tests/*.cu' 'tests/*.sh')

echo "reading path, lines:            $(lines src/model/spec.hpp src/model/transformer_layer.cpp src/nn/linear.cpp \
  src/pipeline/action.hpp src/pipeline/executor.cpp src/data_parallel/param_buffer.cpp src/train/trainer.cpp)"
echo "a layer, forward and backward:  $(lines src/model/transformer_layer.cpp)"
echo "longest header of core:         $(longest src/core/*.hpp)"
echo "communicator interface:         $(lines src/comm/communicator.hpp)"
echo "sources, lines:                 $(lines "${sources[@]}")"
echo "tests, lines:                   $(lines "${tests[@]}")"
echo "longest source:                 $(longest "${sources[@]}")"
awk '/^[ \t]*$/ { next } { ++n } /^[ \t]*\/\// { ++own } /\/\// { ++any }
  END { printf "comment lines / non-blank:      %.1f %%, %.1f %% with those beside code\n", 100 * own / n, 100 * any / n }' \
  "${sources[@]}"
# Paragraphs that declare a function of tensors, and those of them with a shape, where a front stands beside the header.
mapfile -t contracts < <(for header in src/ops/*.hpp; do [[ -f ${header%.hpp}.cpp ]] && echo "$header"; done)
awk 'BEGIN { RS = "" } /Tensor[ >&][^;]*\(|\([^;]*Tensor/ { ++n } /Tensor[ >&][^;]*\(|\([^;]*Tensor/ && /\/\/[^\n]*\[[^]\n]+\]/ { ++shaped }
  END { printf "declarations with shapes:       %d of %d paragraphs of src/ops/*.hpp\n", shaped, n }' "${contracts[@]}"
echo "errors that name an option:     $(grep -hE '"[^"]*--[a-z][a-z-]+' src/*/*.cpp | wc -l) lines of src"
if command -v lizard >/dev/null; then
  for kind in cpp cu; do
    mapfile -t files < <(printf '%s\n' "${sources[@]}" | grep "\.$kind$")
    { lizard -l cpp --csv "${files[@]}" || true; } 2>/dev/null | sort -t, -k5,5rn | sed -n 1p |
      awk -F, -v kind="$kind" '{ gsub(/"/, ""); sub(/.*::/, "", $8); printf "longest function, .%-3s:         %s (%s)\n", kind, $5, $8 }'
  done
fi
