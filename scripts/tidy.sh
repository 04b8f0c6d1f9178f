#!/usr/bin/env bash
# scripts/tidy.sh BUILD [JOBS] [--all]: clang-tidy (settings in .clang-tidy) over the .cpp files that differ from
# origin's main branch or are not yet committed; --all: over every .cpp of src/ and tests/.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/sources.sh
build=$1
jobs=${2:-2}

mapfile -t files < <(sources 'src/*.cpp' 'tests/*.cpp')
if [[ ${3:-} != --all ]]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
  changed=$({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } | sort -u)
  mapfile -t files < <(printf '%s\n' "${files[@]}" | grep -Fxf <(echo "$changed") || true)
fi
[[ ${#files[@]} -gt 0 ]] || { echo "tidy: no changed sources (ALL=1 checks every one)"; exit 0; }

# Only files in the compile database can be checked: a new file enters it when CMake has run again.
cmake "$build" >/dev/null
echo "tidy: ${#files[@]} files"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$jobs" clang-tidy -p "$build" --quiet \
  --extra-arg=-Wno-unknown-warning-option \
  2> >(grep -vE '^[0-9]+ warnings? (generated|treated)' >&2)
