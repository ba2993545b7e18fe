#!/usr/bin/env bash
# Traces a torch job on real GPUs, and checks the recording and the job's results.
#
#   tests/gpu/check.sh NAME RANKS [NAME=VALUE …] -- [options of workload.py]
#
# Needs root, GPUs, torch, and built: ncclflow, libncclflow_truth_profiler.so and the example check_recording, in
# $NCCLFLOW_PROGRAMS (default target/debug). Runs the job once untraced and once traced; both must give the same results.
# PLUGIN=1 loads the profiler plugin beside the tracer (not over NVLink, where it has nothing to tell and the check fails), LATE=1 attaches in
# the middle of the run, LEVEL=steps measures.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
. tests/gpu/job.sh
mkdir "$work/log" "$work/truth"
job() { local mode=$1; shift; start_ranks "$mode" 29511 200 workload.py "$@"; }

job plain "$@"; touch "$work/go"; wait_for 'done' plain; wait

environment+=(NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET,P2P,SHM,COLL,TUNING "NCCL_DEBUG_FILE=$work/log/%p")
if [ -n "${PLUGIN:-}" ]; then
    environment+=("NCCL_PROFILER_PLUGIN=$programs/libncclflow_truth_profiler.so" "NCCLFLOW_TRUTH_DIR=$work/truth")
fi
job traced "$@"
if [ -n "${LATE:-}" ]; then
    touch "$work/go"; sleep 0.5
else
    (sleep 2; touch "$work/go") &
fi
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of traced)" -o "$work/out" --strict --level "${LEVEL:-flow}" 2>"$work/record.err"; recorded=$?
wait_for 'done' traced; wait
tail -n $((ranks + 3)) "$work/record.err"

failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; failed=1; }
[ "$(said 'done' plain)" = "$(said 'done' traced)" ] || { echo "the job's results differ"; failed=1; }
said 'done' traced | grep -vq '^wrong 0 ' && { echo "the job's results are wrong"; failed=1; }
truth=()
[ -n "${PLUGIN:-}" ] && truth=("$work/truth")
"$programs/check_recording" "$work/out" "$work/log" "${truth[@]}" || failed=1
verdict $failed
