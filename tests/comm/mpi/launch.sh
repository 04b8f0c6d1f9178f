#!/usr/bin/env bash
# launch.sh MPIEXEC RANKS PROGRAM [ARGUMENT...]: starts the ranks on this machine, more than it has cores if need be.
set -euo pipefail
mpiexec=$1 ranks=$2
shift 2
flags=()
# Open MPI: refuses root and more ranks than cores otherwise; tests that run side by side must not share one core.
if "$mpiexec" --version 2>&1 | grep -qE 'Open MPI|OpenRTE|PRTE'; then
  flags=(--oversubscribe --bind-to none)
  [[ $(id -u) != 0 ]] || flags+=(--allow-run-as-root)
fi
exec "$mpiexec" "${flags[@]}" -n "$ranks" "$@"
