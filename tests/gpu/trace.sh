#!/usr/bin/env bash
# --trace on GPUs: the timeline is sound, and the run gives the same bits with and without it. Needs python3.
#
#   tests/gpu/trace.sh WEFT [RANKS]        RANKS: 1, 2, 4 or 8, by default as many as there are GPUs
set -euo pipefail
weft=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$(dirname "$0")/../.."
gpus=$(nvidia-smi -L 2>/dev/null | wc -l) || gpus=0
[[ $gpus -gt 0 ]] || { echo "trace: no GPU here"; exit 77; }
ranks=${2:-$gpus}
case $ranks in
  1) layout=() chunks=1 ;;
  2) layout=(--pipeline-model-parallel-size 2 --pipeline-schedule interleaved --num-virtual-stages-per-pipeline-rank 2) chunks=2 ;;
  *) layout=(--pipeline-model-parallel-size 2 --pipeline-schedule interleaved --num-virtual-stages-per-pipeline-rank 2
       --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
       --ddp-bucket-size 20000) chunks=2 ;;
esac
"$weft" tokenizer train --input README.md --vocab-size 300 --out "$work/tokenizer.json" 2>/dev/null
common=(train --text-file README.md --tokenizer-model "$work/tokenizer.json" --data-cache-path "$work" --num-layers 4 --hidden-size 128
  --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --global-batch-size 16 --micro-batch-size 1
  --train-iters 6 --eval-iters 0 --lr 1e-3 --lr-decay-style constant --seed 7 --device cuda --deterministic-mode --ranks "$ranks")
"$weft" "${common[@]}" "${layout[@]}" --metrics "$work/plain.jsonl" --trace "$work/never.json" --trace-start-step 100
"$weft" "${common[@]}" "${layout[@]}" --metrics "$work/traced.jsonl" --trace "$work/trace.json"
[[ ! -e $work/never.json ]] || { echo "trace: a file was written although no step was traced"; exit 1; }
[[ -z ${OUT:-} ]] || cp "$work/trace.json" "$OUT/"
python3 - "$work" "$ranks" "$chunks" <<'PYTHON'
import json, sys
work, ranks, chunks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
keys = ("lm_loss", "grad_norm")
plain, traced = ([tuple(json.loads(line)[k] for k in keys) for line in open(f"{work}/{name}.jsonl")] for name in ("plain", "traced"))
assert len(plain) == 6 and plain == traced, f"losses and norms differ:\n{plain}\n{traced}"
data_parallel = max(1, ranks // (1 if ranks == 1 else 2 if ranks == 2 else 4))
file = json.load(open(f"{work}/trace.json"))
rows, names, processes = {}, {}, set()
for e in file["traceEvents"]:
    for key in ("ph", "ts", "dur", "pid", "tid"):
        assert key in e, e
    if e["ph"] == "M":
        if e["name"] == "thread_name": names[e["pid"], e["tid"]] = e["args"]["name"]
        continue
    processes.add(e["pid"])
    start = round(e["ts"] * 1000)
    rows.setdefault((e["pid"], e["tid"]), []).append((start, start + round(e["dur"] * 1000), e["name"]))
assert processes == set(range(ranks)), processes
for row, events in rows.items():
    open_events = []
    for start, end, name in sorted(events, key=lambda e: (e[0], -e[1])):
        while open_events and open_events[-1][1] <= start: open_events.pop()
        assert not open_events or end <= open_events[-1][1], f"{names[row]} of rank {row[0]}: {name} [{start}, {end}) overlaps {open_events[-1]}"
        open_events.append((start, end, name))
for rank in range(ranks):
    own = {names[row]: events for row, events in rows.items() if row[0] == rank}
    forward = sum(name.startswith("forward ") for _, _, name in own["schedule"])
    assert forward == 2 * chunks * 16 // data_parallel, (rank, forward)
    steps = [e for e in own["schedule"] if e[2] == "step"]
    assert len(steps) == 2 and own["compute"], own.keys()
    print(f"rank {rank}: steps of {[round((e - s) / 1e6, 3) for s, e, _ in steps]} ms; rows",
          {name: len(events) for name, events in own.items()})
print(file["otherData"])
print("trace: sound, and the same bits with and without")
PYTHON
