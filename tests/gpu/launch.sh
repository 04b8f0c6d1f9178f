# For the scripts beside it.

# launch_ranks RANKS SECONDS WEFT ARGUMENTS...
#
# With as many GPUs as ranks these are threads of one process. With fewer GPUs they share them: as threads too where
# NCCL_MULTI_RANK_GPU_ENABLE=1 is set (NCCL from 2.30 on knows it), else as processes under mpirun (as root and with any NCCL:
# each is told that it has a host of its own): right, but slow.
gpus=$(nvidia-smi -L 2>/dev/null | wc -l)

launch_ranks() {
  local ranks=$1 seconds=$2
  shift 2
  if [[ $ranks -le $gpus || ${NCCL_MULTI_RANK_GPU_ENABLE:-0} == 1 ]]; then
    # For ranks that share a GPU: streams with one hardware queue would wait behind a collective, and a kernel that is loaded
    # when it is first used waits for those under way, which may wait for its rank.
    [[ $ranks -le $gpus ]] || export CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER
    timeout -k 5 "$seconds" "$@" --ranks "$ranks"
  else
    timeout -k 5 "$seconds" mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" -x NCCL_MULTI_RANK_GPU_ENABLE=1 \
      -x NCCL_SOCKET_IFNAME=lo bash -c 'export NCCL_HOSTID=host$OMPI_COMM_WORLD_RANK; exec "$@"' rank "$@"
  fi
}

# compare_metrics REFERENCE METRICS LOSS NORM: the largest relative differences of losses and of norms; fails where they reach the bounds.
compare_metrics() {
  awk -v file="$2" -v most_l="$3" -v most_g="$4" '
    function value(line, key) { return match(line, "\"" key "\": [-0-9.e+]+") ? substr(line, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 : 0 }
    function rel(a, b) { return (a > b ? a - b : b - a) / (b > 0 ? b : 1) }
    { loss[NR] = value($0, "lm_loss"); norm[NR] = value($0, "grad_norm"); n = NR }
    END {
      while ((getline line < file) > 0) { m++; l = rel(value(line, "lm_loss"), loss[m]); g = rel(value(line, "grad_norm"), norm[m]);
        if (l > worst_l) worst_l = l; if (g > worst_g) worst_g = g }
      printf "%d of %d steps, loss %.1e, norm %.1e\n", m, n, worst_l, worst_g
      exit !(m == n && n > 0 && worst_l < most_l && worst_g < most_g)
    }' "$1"
}
