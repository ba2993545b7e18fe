#!/usr/bin/env bash
# Measured sizes of an old NCCL (2.16 to 2.19) on real GPUs, over sockets, against arithmetic and the kernel's own tracer.
#
#   tests/gpu/old.sh NAME LIBRARY RANKS ITERS [NAME=VALUE …]
#
# LIBRARY is an official libnccl.so.2, with its symbols; it is used by itself, without torch. Needs root, GPUs, python3, and ncclflow in
# $NCCLFLOW_PROGRAMS (default target/debug). Runs the job once untraced and once traced. CUDA_VISIBLE_DEVICES=0,0 puts two ranks on one GPU,
# which takes turns.
set -uo pipefail
if [ -z "${NCCLFLOW_UNSHARED:-}" ]; then
    # What is mounted goes with us.
    NCCLFLOW_UNSHARED=1 exec unshare --mount "$0" "$@"
fi
cd "$(dirname "$0")/../.."
name=$1 library=$(realpath "$2") ranks=$3 iters=$4
shift 4
environment=(NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_ALGO=Ring NCCL_PROTO=Simple
    NCCL_P2P_LL_THRESHOLD=0 "$@")
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
# shellcheck source=tests/gpu/job.sh
. tests/gpu/job.sh
job() {
    rm -f "$work/id"
    start_ranks "$1" 0 200 old_workload.py --library "$library" --id-file "$work/id" --iters "$iters"
}
# WORD FILE SECONDS: waits until the file has the word.
wait_for_word() {
    for _ in $(seq $((10 * $3))); do
        grep -q "$1" "$2" 2>/dev/null && return
        sleep 0.1
    done
    echo "FAILED: $name: no \`$1\` in $2"
    cat "$2"
    kill_ranks
    exit 1
}
tracer='' recorder=''
# The tracer takes its event out of the kernel, and the recorder its probes, when they end by themselves.
end_tracers() {
    touch "$work/stop"
    [ -n "$recorder" ] && kill "$recorder" 2>/dev/null
    wait
}
trap end_tracers EXIT

job plain
touch "$work/go"; wait_for 'done' plain
wait "${job_processes[@]}"; job_processes=()

job traced
python3 tests/gpu/isend_sizes.py --library "$library" --stop-file "$work/stop" >"$work/isends" 2>"$work/isends.err" &
tracer=$!
wait_for_word tracing "$work/isends.err" 20
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of traced)" -o "$work/out" --strict --level steps 2>"$work/record.err" &
recorder=$!
wait_for_word 'recording to' "$work/record.err" 60
touch "$work/go"; wait_for 'done' traced
wait "${job_processes[@]}"; job_processes=()
wait "$recorder"; recorded=$?; recorder=''
touch "$work/stop"; wait "$tracer"; lost=$?
tail -n $((ranks + 3)) "$work/record.err"
slowest() { said 'done' "$1" | sed 's/.* seconds //' | sort -n | tail -n 1; }
echo "seconds of all operations: untraced $(slowest plain), with ncclflow and the kernel's tracer $(slowest traced)"

failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; failed=1; }
[ $lost = 0 ] || { cat "$work/isends.err"; failed=1; }
for mode in plain traced; do
    said 'done' $mode | grep -vq '^wrong 0 ' && { echo "the job's results are wrong ($mode)"; failed=1; }
done
read -r _ _ _ all_reduce _ all_gather _ send _ <<<"$(said 'done' traced | head -n 1)"
python3 tests/gpu/old_agrees.py "$work/out" "$work/isends" "$ranks" "$iters" "$all_reduce" "$all_gather" "$send" || failed=1
verdict $failed
