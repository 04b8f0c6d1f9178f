#!/usr/bin/env bash
# scripts/run_ctest.sh BUILD [ctest options]: runs the tests of a build folder and closes with "N passed, N failed".
set -euo pipefail
build=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT

status=0
ctest --test-dir "$build" -j2 --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log" || status=$?

# ctest: "97% tests passed, 2 tests failed out of 71". Skipped tests count as passed there, not here.
failed=$(sed -nE 's/^[0-9]+% tests passed, ([0-9]+) tests? failed out of [0-9]+$/\1/p' "$log" | tail -n 1)
total=$(sed -nE 's/^[0-9]+% tests passed, [0-9]+ tests? failed out of ([0-9]+)$/\1/p' "$log" | tail -n 1)
skipped=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*Skipped' "$log" || true)
if [[ -z $total ]]; then
  echo "no test ran" >&2
  echo "0 passed, 0 failed"
  exit 1
fi
if [[ $skipped -gt 0 ]]; then echo "$skipped skipped"; fi
echo "$((total - failed - skipped)) passed, $failed failed"
exit "$status"
