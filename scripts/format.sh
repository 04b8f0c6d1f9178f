#!/usr/bin/env bash
# scripts/format.sh [--check]: lays the sources out by .clang-format, or fails naming those that are not.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/sources.sh
mapfile -t files < <(sources '*.cpp' '*.hpp' '*.cu' '*.cuh')
[[ ${#files[@]} -gt 0 ]] || exit 0
if [[ ${1:-} == --check ]]; then
  clang-format --dry-run --Werror "${files[@]}"
  echo "format: ${#files[@]} files are laid out by .clang-format"
else
  clang-format -i "${files[@]}"
fi
