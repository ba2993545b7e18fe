#!/usr/bin/env bash
# CUDA graphs: a torch job on real GPUs that captures its operations once and replays them, under two tracers, of which one walks
# plans and one sees each call. Both must write the same records, and the job's results must be right.
#
#   tests/gpu/graphs.sh NAME RANKS [NAME=VALUE …]
#
# Needs root, GPUs, torch, and a release build of ncclflow in $NCCLFLOW_PROGRAMS (default target/release).
#
#   tests/gpu/graphs.sh nvlink 2
#   tests/gpu/graphs.sh net 2 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_NET=Socket
set -uo pipefail
cd "$(dirname "$0")/../.."
name=$1 ranks=$2
shift 2
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/release}")
work=$(mktemp -d "/tmp/ncclflow-graphs-$name.XXXX")

wait_for() { # pattern
    for _ in $(seq 900); do
        [ "$(grep -l "^$1" "$work"/*.out 2>/dev/null | wc -l)" = "$ranks" ] && return
        sleep 0.1
    done
    echo "FAILED: $name: no \`$1\` from all ranks"; tail -n 5 "$work"/*.out; exit 1
}

for rank in $(seq 0 $((ranks - 1))); do
    env RANK="$rank" WORLD_SIZE="$ranks" MASTER_ADDR=127.0.0.1 MASTER_PORT=29521 "$@" \
        timeout 120 python3 -u tests/gpu/workload.py --wait-file "$work/go" --graph --iters 20 --elements 4096,1048576 \
        --ops allreduce,allgather,reducescatter,broadcast >"$work/$rank.out" 2>&1 &
done
wait_for ready
pids=$(cat "$work"/*.out | awk '/^ready/ {printf "%s%s", sep, $2; sep = ","}')
tracers=()
for probes in plan per-call; do
    "$programs/ncclflow" record -p "$pids" -o "$work/$probes" --strict --probes "$probes" 2>"$work/$probes.err" &
    tracers+=($!)
done
sleep 3; touch "$work/go"
wait_for 'done'
failed=0
for tracer in "${tracers[@]}"; do wait "$tracer" || { echo "a tracer ended with $?"; failed=1; }; done
wait
tail -qn $((ranks + 2)) "$work"/*.err
grep -hv '^ready' "$work"/*.out | grep -q '^done wrong 0 ' || { echo "the job's results are wrong"; failed=1; }
python3 tests/gpu/compare_recordings.py "$work/plan" "$work/per-call" || failed=1
[ -n "${KEEP:-}" ] && tar czf "$KEEP/$name.tgz" -C "$work" .
[ $failed = 0 ] && echo "PASSED: $name" || echo "FAILED: $name"
exit $failed
