#!/usr/bin/env bash
# A training alone, and again while recordings attach to it and detach from it: each iteration's loss must be the same to the bit, and no
# recording may lose anything.
#
#   tests/gpu/attach.sh NAME RANKS RECORDINGS ITERATIONS [NAME=VALUE …] [-- options of `ncclflow record`]
#
# Needs root, GPUs, torch, and ncclflow in $NCCLFLOW_PROGRAMS (default target/release). The training must last longer than the recordings,
# which take some 0.7 s each.
set -uo pipefail
cd "$(dirname "$0")/../.."
numbers=(recordings iterations)
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/release}")
. tests/gpu/job.sh
train() { start_ranks "$1" 29541 280 ddp.py --iters "$iterations"; }

train plain; touch "$work/go"; wait_for seconds plain; wait
train traced
pids=$(pids_of traced)
touch "$work/go"
made=0 failed=0
while [ $made -lt "$recordings" ] && ! grep -q '^done' "$work"/traced.*.out; do
    rm -rf "$work/out"
    "$programs/ncclflow" record -p "$pids" -d 0.1 -o "$work/out" --strict "$@" 2>"$work/record.err"; recorded=$?
    # Ranks that end meanwhile are no fault of the recording.
    grep -q '^done' "$work"/traced.*.out && break
    [ $recorded = 0 ] || { echo "recording $made ended with $recorded"; tail -n 5 "$work/record.err"; failed=1; break; }
    made=$((made + 1))
done
wait_for seconds traced; wait
echo "$made recordings during one training"
[ $made = "$recordings" ] || { echo "$recordings were wanted"; failed=1; }
[ -n "$(said 'done' plain)" ] && [ "$(said 'done' plain)" = "$(said 'done' traced)" ] || { echo "the losses differ"; failed=1; }
said 'done' traced
verdict $failed
