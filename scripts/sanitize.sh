#!/usr/bin/env bash
# scripts/sanitize.sh [JOBS]: address and undefined-behaviour sanitizers on the fast tests (build-asan), the thread
# sanitizer on the communicators (build-tsan).
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-2}

configure() {  # folder, sanitizers
  [[ -f $1/build.ninja ]] || cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DWEFT_SANITIZE=$2"
}

# oneDNN and OpenMP are not instrumented: the thread sanitizer cannot see their locks. One OpenMP thread and the
# suppression leave our own code in view.
configure build-tsan thread
cmake --build build-tsan --parallel "$jobs" --target weft_comm_tests
OMP_NUM_THREADS=1 TSAN_OPTIONS="halt_on_error=1 suppressions=$PWD/scripts/tsan.supp" build-tsan/weft_comm_tests

configure build-asan "address;undefined"
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
cmake --build build-asan --parallel "$jobs"
scripts/run_ctest.sh build-asan -L fast
