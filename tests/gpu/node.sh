#!/usr/bin/env bash
# A torch job as the whole node sees it: `ps`, `record --all --metrics`, `top --all`, all at once, against what the job itself did.
#
#   tests/gpu/node.sh NAME RANKS ITERATIONS [NAME=VALUE …]
#
# Needs root, GPUs, torch, curl, and a release build of ncclflow in $NCCLFLOW_PROGRAMS (default target/release).
#
#   tests/gpu/node.sh nvlink 2 2000
#   tests/gpu/node.sh net 2 1000 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_NET=Socket
set -uo pipefail
cd "$(dirname "$0")/../.."
numbers=(iterations)
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/release}")
port=${METRICS_PORT:-9690}
. tests/gpu/job.sh
elements=1048576

start_ranks job 29541 280 workload.py --iters "$iterations" --elements "$elements" --ops allreduce,allgather,reducescatter,broadcast
"$programs/ncclflow" ps --json >"$work/ps.json"
"$programs/ncclflow" record --files-limit 1T --all --level steps --metrics "$port" -o "$work/out" --strict 2>"$work/record.err" &
record=$!
wait_for_recording "$work/record.err"
begin=$(date +%s.%N)
touch "$work/go"
sleep 2
"$programs/ncclflow" top --all --once --json --interval 5 >"$work/top.json" 2>"$work/top.err"
wait_for 'done' job
end=$(date +%s.%N)
sleep 1
curl -sf "http://127.0.0.1:$port/metrics" >"$work/after.txt"
kill -INT $record; wait $record; recorded=$?
wait
tail -n $((ranks + 3)) "$work/record.err"

failed=0
[ $recorded = 0 ] || { echo "ncclflow record ended with $recorded"; failed=1; }
said 'done' job | grep -vq '^wrong 0 ' && { echo "the job's results are wrong"; failed=1; }
python3 tests/gpu/node_agrees.py "$work" --ranks "$ranks" --iterations "$iterations" --elements "$elements" \
    --seconds "$(echo "$end $begin" | awk '{print $1 - $2}')" --pids "$(pids_of job)" || failed=1
verdict $failed
