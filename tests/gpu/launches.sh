#!/usr/bin/env bash
# Launches without proxy ops on real GPUs: what `record` says of each call on symmetric memory, by copy engines, and of each one-sided call,
# against what the program called.
#
#   tests/gpu/launches.sh KIND LIBRARY RANKS ITERS [NAME=VALUE …]
#
# KIND is symmetric (NCCL 2.27 and later), copies (2.28 and later) or one-sided (2.29 and later); LIBRARY is an official libnccl.so.2. Needs
# root, as many GPUs that reach each other's memory, python3, and ncclflow in $NCCLFLOW_PROGRAMS (default target/debug).
#
#   tests/gpu/launches.sh symmetric /usr/lib/libnccl.so.2 2 20
set -uo pipefail
cd "$(dirname "$0")/../.."
name=$1 library=$(realpath "$2") ranks=$3 iters=$4
shift 4
environment=("$@")
# Copy engines serve collectives that may use no multiprocessor: NCCL_CTA_POLICY_ZERO.
[ "$name" = copies ] && environment+=(NCCL_CTA_POLICY=2)
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
# shellcheck source=tests/gpu/job.sh
. tests/gpu/job.sh

start_ranks calls 0 200 launches.py --kind "$name" --library "$library" --id-file "$work/id" --iters "$iters"
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of calls)" -o "$work/out" --strict 2>"$work/record.err" &
recorder=$!
wait_for_recording "$work/record.err"
touch "$work/go"; wait_for 'done' calls
wait "$recorder"; recorded=$?
wait
tail -n $((ranks + 3)) "$work/record.err"
failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; failed=1; }
said 'done' calls | grep -vq '^wrong 0' && { echo "the job's results are wrong"; failed=1; }
outputs=()
for rank in $(seq 0 $((ranks - 1))); do outputs+=("$work/calls.$rank.out"); done
python3 tests/gpu/launches.py --compare "$work/out" "${outputs[@]}" || failed=1
verdict $failed
