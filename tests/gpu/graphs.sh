#!/usr/bin/env bash
# CUDA graphs: a torch job on real GPUs that captures its operations once and replays them, under two tracers, of which one walks
# plans and one sees each call. Both must write the same records, and the job's results must be right. Then a job that launches graphs in
# every way: one captured before the recording, one without NCCL, several at a time, others at the address of one that is gone. The
# recording must have each replayed operation, and count the launches of which nothing can be known.
#
#   tests/gpu/graphs.sh NAME RANKS [NAME=VALUE …]
#
# Needs root, GPUs, torch, and a release build of ncclflow in $NCCLFLOW_PROGRAMS (default target/release).
#
#   tests/gpu/graphs.sh nvlink 2
#   tests/gpu/graphs.sh net 2 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_NET=Socket
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/release}")
. tests/gpu/job.sh

start_ranks graphs 29521 120 workload.py --graph --iters 20 --elements 4096,1048576 --ops allreduce,allgather,reducescatter,broadcast
pids=$(pids_of graphs)
tracers=()
for probes in plan per-call; do
    "$programs/ncclflow" record --files-limit 1T -p "$pids" -o "$work/$probes" --strict --probes "$probes" 2>"$work/$probes.err" &
    tracers+=($!)
done
sleep 3; touch "$work/go"
wait_for 'done' graphs
failed=0
for tracer in "${tracers[@]}"; do wait "$tracer" || { echo "a tracer ended with $?"; failed=1; }; done
wait
tail -qn $((ranks + 2)) "$work"/*.err
said 'done' graphs | grep -vq '^wrong 0 ' && { echo "the job's results are wrong"; failed=1; }
python3 tests/gpu/compare_recordings.py "$work/plan" "$work/per-call" || failed=1

start_ranks launches 29522 120 graphs_job.py
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of launches)" -o "$work/launched" 2>"$work/launched.err" &
tracer=$!
wait_for_recording "$work/launched.err"; touch "$work/go"
wait_for truth launches
wait $tracer || { echo "the tracer ended with $?"; failed=1; }
wait
tail -n $((ranks + 2)) "$work/launched.err"
said truth launches | python3 tests/gpu/graph_replays.py "$work/launched" || failed=1
verdict $failed
