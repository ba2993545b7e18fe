#!/usr/bin/env bash
# A training with torch's DistributedDataParallel, alone and recorded: nothing may be lost, and each iteration's loss must be the same to
# the bit.
#
#   tests/gpu/ddp.sh NAME RANKS ITERATIONS [NAME=VALUE …] [-- options of `ncclflow record`]
#
# Needs root, GPUs, torch, and a release build of ncclflow in $NCCLFLOW_PROGRAMS (default target/release).
#
#   tests/gpu/ddp.sh net 2 8000 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_NET=Socket
set -uo pipefail
cd "$(dirname "$0")/../.."
name=$1 ranks=$2 iterations=$3
shift 3
environment=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do environment+=("$1"); shift; done
[ $# -gt 0 ] && shift
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/release}")
work=$(mktemp -d "/tmp/ncclflow-ddp-$name.XXXX")

wait_for() { # pattern, mode
    for _ in $(seq 3000); do
        [ "$(grep -l "^$1" "$work/$2".*.out 2>/dev/null | wc -l)" = "$ranks" ] && return
        sleep 0.1
    done
    echo "FAILED: $name: no \`$1\` from all ranks"; tail -n 5 "$work/$2".*.out; exit 1
}

train() { # mode
    rm -f "$work/go"
    for rank in $(seq 0 $((ranks - 1))); do
        env RANK="$rank" WORLD_SIZE="$ranks" MASTER_ADDR=127.0.0.1 MASTER_PORT=29531 "${environment[@]}" \
            timeout 280 python3 -u tests/gpu/ddp.py --wait-file "$work/go" --iters "$iterations" >"$work/$1.$rank.out" 2>&1 &
    done
    wait_for ready "$1"
}

train plain; touch "$work/go"; wait_for seconds plain; wait
train traced
pids=$(cat "$work"/traced.*.out | awk '/^ready/ {printf "%s%s", sep, $2; sep = ","}')
(sleep 2; touch "$work/go") &
"$programs/ncclflow" record -p "$pids" -o "$work/out" --strict "$@" 2>"$work/record.err"; recorded=$?
wait_for seconds traced; wait
tail -n $((ranks + 3)) "$work/record.err"

failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; failed=1; }
curve() { sed -n 's/^done //p' "$work/$1".*.out; }
[ -n "$(curve plain)" ] && [ "$(curve plain)" = "$(curve traced)" ] || { echo "the losses differ"; failed=1; }
curve traced
for mode in plain traced; do echo "$mode: $(sed -n 's/^seconds //p' "$work/$mode".*.out | tr '\n' ' ') s"; done
[ $failed = 0 ] && echo "PASSED: $name" || echo "FAILED: $name"
exit $failed
