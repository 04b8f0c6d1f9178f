#!/usr/bin/env bash
# failure_test.sh MPIEXEC weft_comm_mpi_faults CASE: one failing run on four ranks. Checks that it ends within 30 s,
# with the right status, and that exactly one rank reports, with the right words.
set -uo pipefail
mpiexec=$1 program=$2 name=$3
here=$(dirname "$0")
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() {
  echo "$name: $*; its output:"
  cat "$log"
  exit 1
}

begin=$SECONDS
timeout -k 5 60 "$here/launch.sh" "$mpiexec" 4 "$program" "$name" >"$log" 2>&1
status=$?
seconds=$((SECONDS - begin))
[[ $seconds -lt 30 ]] || fail "took $seconds s"

# expect STATUS REPORTS TEXT...: "any" status is any but 0. A report is a line that starts with "error: rank".
expect() {
  if [[ $1 == any ]]; then
    [[ $status != 0 ]] || fail "status 0"
  else
    [[ $status == "$1" ]] || fail "status $status, not $1"
  fi
  local reports
  reports=$(grep -c '^error: ' "$log")
  [[ $reports == "$2" ]] || fail "$reports reports, not $2"
  local text
  for text in "${@:3}"; do grep -qF -- "$text" "$log" || fail "does not say '$text'"; done
}

absent="rank 2 has not joined it. Last calls: rank 0: all_reduce #0 in group 'dp', now waiting"
case $name in
  throw) expect 1 1 "error: rank 2: the disk of rank two is full (step 3)" ;;
  throw-in-flight) expect 1 1 "error: rank 2: thrown with a sum in flight" ;;
  config) expect 2 2 "error: rank 1: --one is wrong" "error: --two is wrong" ;;
  config-all) expect 2 1 ": --seq-length 7 does not divide by --tp 2" ;;
  kill) expect any 0 "9" ;;  # mpirun names the rank and its signal
  stop)
    expect 1 1 "group 'dp' (ranks 0 1 2 3): all_reduce(F32 [50000], sum) #0 timed out after 3 s" "$absent" \
      "rank 2: no answer" "step 3"
    ;;
  asleep) expect 1 1 "timed out after 3 s" "not joined it" "rank 2: split #2 in group 'world'" ;;
  absent-receiver) expect 1 1 "timed out after 3 s" "rank 1: all_reduce #1" "not joined it" ;;
  size)
    expect 1 1 "group 'dp' (ranks 0 1 2 3), operation #0: the calls of its ranks differ" \
      "rank 2 called all_reduce(F32 [50001], sum), but rank 0 called all_reduce(F32 [50000], sum)"
    ;;
  operation)
    expect 1 1 "operation #2" "rank 3 called broadcast(F32 [50000], root 0), but rank 0 called all_reduce(F32 [50000], sum)"
    ;;
  dtype) expect 1 1 "rank 1 called all_reduce(F32 [8], sum), but rank 0 called all_reduce(F64 [8], sum)" ;;
  order) expect 1 1 "operation #2" "rank 1 called all_reduce(F32 [5000], sum), but rank 0 called all_reduce(F32 [6000], sum)" ;;
  rows) expect 1 1 "rank 2 called all_to_all(rows of F32 [1, 3], sends [1, 1, 1, 1], receives [1, 1, 1, 1])" "sends [1, 1, 2, 1]" ;;
  message) expect 1 1 "message #0 from rank 0 to rank 1" "rank 1 called receive(F32 [3]), but rank 0 called send(F32 [2])" ;;
  split-name) expect 1 1 "rank 1 called split(color 0, 'tp')" "split(color 0, 'dp')" ;;
  returned) expect 1 1 "can never complete: a rank has returned without joining it; rank 1 has not joined it" ;;
  returned-queued)
    expect 1 1 "all_reduce(F32 [1100000], sum) #2 can never complete: a rank has returned without joining it" \
      "rank 1 has not joined it"
    ;;
  dropped) expect 1 1 "error: rank 1: group 'world' (ranks 0 1 2 3): all_reduce(F32 [50000], sum) #2 was started, but its result was never waited for" ;;
  swallowed) expect 1 1 "error: rank 1: group 'world' (ranks 0 1 2 3): all_reduce(F32 [50000], sum) #2 was cancelled by an exception" ;;
  memory) expect 1 1 "error: rank 0: std::bad_alloc" ;;
  busy) expect 1 1 "rank 2 called receive(F32 [7]), but rank 1 called send(F32 [6])" ;;
  choose) expect 0 0 "mpi of 4" ;;
  none) expect 0 0 "came to its end" ;;
  *) fail "there is no such case" ;;
esac
echo "$name: status $status after $seconds s"
