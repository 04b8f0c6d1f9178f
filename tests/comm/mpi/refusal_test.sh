#!/usr/bin/env bash
# refusal_test.sh weft_comm_mpi_faults: a launcher of another kind. Its processes see MPI worlds of one each.
set -uo pipefail
program=$1
fail() { echo "$*" >&2; exit 1; }

# A process on its own, as under a launcher that this MPI does not know.
unset "${!OMPI_@}" "${!PMI@}" "${!SLURM_@}"
says=$(SLURM_NTASKS=4 timeout 20 "$program" choose 2>&1)
[[ $? == 2 ]] || fail "not refused: $says"
[[ $says == *"SLURM_NTASKS=4"*"one of 1 process"*"srun"* ]] || fail "the refusal says: $says"
says=$(timeout 20 "$program" choose 2>&1) || fail "refused: $says"
[[ $says == *"threads of 1"* ]] || fail "without a launcher: $says"
echo "refused as it must be"
