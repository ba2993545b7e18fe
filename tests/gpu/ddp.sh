#!/usr/bin/env bash
# A training with torch's DistributedDataParallel (FSDP=1: fully_shard), alone and recorded: nothing may be lost, and each iteration's loss
# must be the same to the bit. Says how many bytes a launch takes.
#
#   tests/gpu/ddp.sh NAME RANKS ITERATIONS [NAME=VALUE …] [-- options of `ncclflow record`]
#
# Needs root, GPUs, torch, and a release build of ncclflow in $NCCLFLOW_PROGRAMS (default target/release).
#
#   tests/gpu/ddp.sh net 2 8000 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_NET=Socket
set -uo pipefail
cd "$(dirname "$0")/../.."
numbers=(iterations)
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/release}")
. tests/gpu/job.sh
train() { start_ranks "$1" 29531 280 ddp.py --iters "$iterations" ${FSDP:+--fsdp}; }

train plain; touch "$work/go"; wait_for seconds plain; wait
train traced
(sleep 2; touch "$work/go") &
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of traced)" -o "$work/out" --strict "$@" 2>"$work/record.err"; recorded=$?
wait_for seconds traced; wait
tail -n $((ranks + 3)) "$work/record.err"

failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; failed=1; }
[ -n "$(said 'done' plain)" ] && [ "$(said 'done' plain)" = "$(said 'done' traced)" ] || { echo "the losses differ"; failed=1; }
said 'done' traced
"$programs/ncclflow" summary "$work/out" --json >"$work/summary.json" 2>"$work/summary.err" || { head -n 3 "$work/summary.err"; failed=1; }
python3 - "$work/out" <<'P'
import json, sys
session = json.load(open(f"{sys.argv[1]}/session.json"))
kept, hits = session["recording"], sum(probe["delivered"] or 0 for probe in session["probes"])
print(f"{kept['records']} records ({hits} of probes) in {kept['bytes']} bytes: {kept['bytes'] / max(1, kept['records']):.2f} bytes a record")
P
for mode in plain traced; do echo "$mode: $(said seconds "$mode" | tr '\n' ' ') s"; done
verdict $failed
